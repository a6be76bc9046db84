"""What a plant says is what its mutant is: each edit, where the finding may stand, and an error for all else."""

from __future__ import annotations

from typing import Any

import pytest

from ci.mutants.plants import Mutant, mutants, without_plants


def planted(**marked: str) -> list[Mutant]:
    read = {name: without_plants(f"{name}.py", text) for name, text in marked.items()}
    texts = {f"{name}.py": text for name, (text, _) in read.items()}
    return list(mutants(texts, [plant for _, plants in read.values() for plant in plants]))


def only(marked: str) -> tuple[str, list[int]]:
    """Text and lines of the one mutant of a file."""
    (mutant,) = planted(x=marked)
    return mutant.texts["x.py"], sorted(line for _, line in mutant.expected)


EDITS = {
    "delete": ("a()\nb()  # mutant DDP201: delete; at a(", "a()\n", [1]),
    "delete all of a statement": ("a()\nb(\n    1,  # mutant DDP201: delete; at a\n)", "a()\n", [1]),
    "delete what is alone": ("if x:\n    b()  # mutant DDP201: delete", "if x:\n    pass\n", [2]),
    "dedent": ("if x:  # mutant DDP201: dedent\n    a(\n        1,\n    )\nb()", "a(\n    1,\n)\nb()\n", [1, 2, 3]),
    "insert": ("a()\n# mutant DDP201: insert b()\nc()", "a()\nb()\nc()\n", [2]),
    "insert at a block's end": ("if x:\n    a()\n    # mutant DDP201: insert b()", "if x:\n    a()\n    b()\n", [3]),
    "insert two lines": ("# mutant DDP201: insert if x: a()\nb()", "if x:\n    a()\nb()\n", [1, 2]),
    "insert deeper": (
        "# mutant DDP201 a: insert def f():\n# mutant DDP201 a: insert     a()\nb()",
        "def f():\n    a()\nb()\n",
        [1, 2],
    ),
    "header": ("b(\n    1,\n)  # mutant DDP201: if x: ...", "if x:\n    b(\n        1,\n    )\n", [1, 2, 3, 4]),
    "header and tail": (
        "# mutant DDP201: try: ... except OSError: pass\nb()",
        "try:\n    b()\nexcept OSError:\n    pass\n",
        [1, 2, 3, 4],
    ),
    "header over a function": (
        "# mutant DDP201: if x: ...\n@d\ndef f():\n    a()",
        "if x:\n    @d\n    def f():\n        a()\n",
        [1, 2, 3, 4],
    ),
    "replace": ("b(model.module)  # mutant DDP201: .module -> .net", "b(model.net)\n", [1]),
    "replace by nothing": ("b(model.module)  # mutant DDP201: .module ->", "b(model)\n", [1]),
    "replace below": ("b(\n    # mutant DDP201: 1 -> 2\n    1,\n)", "b(\n    2,\n)\n", [1, 2, 3]),
    "two edits of one line": ("b(1, 2)  # mutant DDP201 a: 1 -> 3  # mutant DDP201 a: 2 -> 4", "b(3, 4)\n", [1]),
    "under a header": ("# mutant DDP201 a: if x: ...\nb(1)  # mutant DDP201 a: 1 -> 2", "if x:\n    b(2)\n", [1, 2]),
    "at several places": ("a()\nb()\nc()  # mutant DDP201: c -> d; at a(; at here", "a()\nb()\nd()\n", [1, 3]),
    "behind another comment": ("b(1)  # why  # mutant DDP201: 1 -> 2", "b(2)  # why\n", [1]),
    "a text that looks like one": ('b("# mutant x", 1)  # mutant DDP201: 1 -> 2', 'b("# mutant x", 2)\n', [1]),
}  # fmt: skip


@pytest.mark.parametrize("marked, text, lines", EDITS.values(), ids=EDITS)
def test_an_edit(marked: str, text: str, lines: list[int]) -> None:
    assert only(marked + "\n") == (text, lines)


def test_the_checked_text_has_no_plants() -> None:
    marked = (
        "# one\n# mutant DDP101: insert x\na()  # two  # mutant DDP201: delete; at b\n\nb()  # mutant DDP301: b ->\n"
    )
    assert without_plants("x.py", marked)[0] == "# one\na()  # two\n\nb()\n"


def test_letters_make_one_mutant_of_edits_in_all_files() -> None:
    found = planted(
        x="a()  # mutant DDP201 ac: a -> b  # mutant DDP202: a -> c\n", y="d()  # mutant DDP201 bc: d -> e\n"
    )
    assert [(one.code, one.texts, len(one.expected)) for one in found] == [
        ("DDP201", {"x.py": "b()\n", "y.py": "d()\n"}, 1),
        ("DDP201", {"x.py": "b()\n", "y.py": "e()\n"}, 2),
        ("DDP201", {"x.py": "a()\n", "y.py": "e()\n"}, 1),
        ("DDP202", {"x.py": "c()\n", "y.py": "d()\n"}, 1),
    ]


def test_a_place_may_be_in_another_file_and_other_codes_may_be_true() -> None:
    (mutant,) = planted(x="a()  # mutant DDP201: delete; at b(; also DDP501\n", y="\nb()\n")
    assert mutant.expected == {("y.py", 2)} and mutant.also == {"DDP501"} and mutant.texts["x.py"] == "pass\n"


WRONG: dict[str, Any] = {
    "an unknown edit": ("a()  # mutant DDP201: remove", "the edit is none of"),
    "no code": ("a()  # mutant: delete", "a plant is written"),
    "no edit": ("a()  # mutant DDP201", "a plant is written"),
    "no blank": ("a()  #mutant DDP201: delete", "a plant is written"),
    "capital letters": ("a()  # Mutant DDP201: delete", "a plant is written"),
    "the second of two": ("a()  # mutant DDP201: a -> b  # mutant DDP202: x y", "the edit is none of"),
    "what is not there": ("a()  # mutant DDP201: b -> c", "'b' is not once in 'a()'"),
    "what is there twice": ("a(a)  # mutant DDP201: a -> c", "'a' is not once in 'a(a)'"),
    "what another edit took": (
        "a()  # mutant DDP201 a: delete  # mutant DDP201 a: a -> c\nb()",
        "'a' is not once in ''",
    ),
    "an insertion behind code": ("a()  # mutant DDP201: insert b()", "an insertion needs a line of its own"),
    "nothing to change": ("a()\n# mutant DDP201: delete", "no statement stands here"),
    "a header with another branch": ("if x:  # mutant DDP201: dedent\n    a()\nelse:\n    b()", "without other branch"),
    "a header that is none": ("a()  # mutant DDP201: dedent", "without other branch"),
    "no Python": ("a()  # mutant DDP201: a -> (", "leads to wrong syntax"),
    "no change": ("a()  # mutant DDP201: a -> a", "changes nothing"),
    "no place": ("a()\nb()  # mutant DDP201: delete", "no line for a finding at 'here'"),
    "a place that is not there": ("a()  # mutant DDP201: a -> b; at c", "no line for a finding at 'c'"),
}


@pytest.mark.parametrize("marked, message", WRONG.values(), ids=WRONG)
def test_a_plant_that_cannot_be_read_is_an_error_with_its_place(marked: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^x\.py:\d+: ") as caught:
        planted(x=marked + "\n")
    assert message in str(caught.value)
