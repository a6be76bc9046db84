"""Suppression comments silence what they name, where they stand; idle and mistyped ones are reported."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syntax_nodes import calls_and_statements, span_of
from validate_ddp.edit.suppressions import suppress
from validate_ddp.findings import Proposal, Span
from validate_ddp.source.text import Cell

pytestmark = pytest.mark.usefixtures("six_rules")

ALL = frozenset(("DDP001", "DDP002", "DDP003", "DDP201", "DDP203", "DDP502"))


def propose(text: str, code: str = "DDP502") -> list[Proposal]:
    """A proposal at each call of ``save``."""
    found = []
    for node, statement in calls_and_statements(text):
        if getattr(node.func, "id", "") == "save":
            span, whole = span_of(node), span_of(statement)
            if hasattr(statement, "body"):
                whole = whole._replace(end_line=span.end_line, end_column=span.end_column)
            found.append(Proposal(code, "error", "x.py", span, whole, "m", ("", "")))
    return sorted(found, key=lambda proposal: proposal.span)


def run(text: str, code: str = "DDP502", enabled: frozenset[str] = ALL) -> tuple[list[int], list[str]]:
    """Lines of the findings that are left, and the messages of DDP003."""
    text = textwrap.dedent(text)
    result = suppress(text, "x.py", propose(text, code), enabled)
    return [proposal.span.line for proposal in result.kept], [finding.message for finding in result.unused]


SILENT = {
    "noqa": "save()  # noqa: DDP502\n",
    "noqa without spaces": "save()#noqa:DDP502\n",
    "noqa in capitals": "save()  # NOQA : ddp502\n",
    "blanket noqa": "save()  # noqa\n",
    "noqa beside others": "save()  # noqa: E501, DDP502,F401\n",
    "noqa by spaces": "save()  # noqa: E501 DDP502\n",
    "noqa with a reason": "save()  # noqa: DDP502 because one rank runs\n",
    "noqa by name": "save()  # noqa: save-on-every-rank\n",
    "noqa after another comment": "save()  # type: ignore  # noqa: DDP502\n",
    "noqa above": "# noqa: DDP502\nsave()\n",
    "ignore": "save()  # validate-ddp: ignore\n",
    "ignore a code": "save()  # validate-ddp: ignore[DDP502]\n",
    "ignore a name": "save()  # validate-ddp:ignore[ Save-On-Every-Rank ] one rank only\n",
    "ignore above": "# validate-ddp: ignore[DDP502]\nsave()\n",
    "ignore above a comment": "# validate-ddp: ignore[DDP502]\n# the reason\nsave()\n",
    "on any line of the statement": "save(\n    1,  # noqa: DDP502\n    2,\n)\n",
    "on the last line": "save(\n    1,\n)  # validate-ddp: ignore[DDP502]\n",
    "on a header": "for x in save(\n    1,\n    2,  # noqa: DDP502\n): pass\n",
    "indented above": "if x:\n    # validate-ddp: ignore[DDP502]\n    save()\n",
    "two on a line": "save(); save()  # noqa: DDP502\n",
    "file": "x = 1\nsave()\n# validate-ddp: ignore-file[DDP502]\n",
    "whole file": "# validate-ddp: ignore-file\nsave()\nsave()\n",
    "block": "# validate-ddp: off[DDP502]\nsave()\nsave()\n# validate-ddp: on\n",
    "block to the dedent": "if x:\n    # validate-ddp: off\n    save()\n    if y:\n        save()\n",
    "block with a string": "if x:\n    # validate-ddp: off\n    y = '''\nz\n'''\n    save()\n",
    "block with brackets": "if x:\n    # validate-ddp: off\n    y = (\n1,\n)\n    save()\n",
    "block with dedented comment": "if x:\n    # validate-ddp: off\n    y = 1\n# hello\n    save()\n",
    "nested blocks": "if x:\n  # validate-ddp: off\n  if y:\n    # validate-ddp: off[DDP201]\n    pass\n  save()\n",
    "crlf": "save()  # noqa: DDP502\r\n# validate-ddp: ignore\r\nsave()\r\n",
}


@pytest.mark.parametrize("name", sorted(SILENT))
def test_silent(name: str) -> None:
    text = SILENT[name]
    assert propose(text)
    assert run(text, enabled=ALL - {"DDP201"})[0] == []


LOUD = {
    "other code": ("save()  # noqa: E501\n", [1]),
    "other rule": ("save()  # noqa: DDP201\n", [1]),
    "in a string": ("save('# noqa: DDP502')\n", [1]),
    "in a docstring": ("'''\n# validate-ddp: ignore-file\n'''\nsave()\n", [4]),
    "below": ("save()\n# noqa: DDP502\n", [1]),
    "trailing on the line above": ("x = 1  # noqa: DDP502\nsave()\n", [2]),
    "a blank line between": ("# validate-ddp: ignore[DDP502]\n\nsave()\n", [3]),
    "after the block": ("# validate-ddp: off\nsave()\n# validate-ddp: on\nsave()\n", [4]),
    "after the dedent": ("if x:\n    # validate-ddp: off\n    save()\nsave()\n", [4]),
    "before the block": ("save()\n# validate-ddp: off\nsave()\n", [1]),
    "body of a header": ("for x in y:  # noqa: DDP502\n    save()\n", [2]),
    "unknown directive": ("save()  # validate-ddp: ignor\n", [1]),
    "unclosed": ("save()  # validate-ddp: ignore[DDP502\n", [1]),
    "empty brackets": ("save()  # validate-ddp: ignore[]\n", [1]),
    "indented file comment": ("if x:\n    # validate-ddp: ignore-file\n    save()\n", [3]),
    "trailing file comment": ("x = 1  # validate-ddp: ignore-file\nsave()\n", [2]),
    "trailing off": ("x = 1  # validate-ddp: off\nsave()\n", [2]),
    "longer word": ("save()  # noqa-file\nsave()  # noqas\n", [1, 2]),
    "noqa colon nonsense": ("save()  # noqa: !!\n", [1]),
    "commented in the middle": ("# see the noqa docs\nsave()\n", [2]),
}


@pytest.mark.parametrize("name", sorted(LOUD))
def test_loud(name: str) -> None:
    text, lines = LOUD[name]
    assert run(text)[0] == lines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1  # noqa: DDP502\n", "DDP502 (save-on-every-rank) is not found here"),
        ("save()  # noqa: DDP502, DDP201\n", "DDP201 (missing-set-epoch) is not found here"),
        ("x = 1  # noqa: DDP502, DDP201\n", "DDP502 (save-on-every-rank), DDP201 (missing-set-epoch) are not found"),
        ("x = 1  # validate-ddp: ignore\n", "`ignore` could silence"),
        ("# validate-ddp: ignore-file\nx = 1\n", "`ignore-file` could silence"),
        ("# validate-ddp: off\nx = 1\n", "`off` could silence"),
        ("# validate-ddp: ignore-file[DDP502]\nx = 1\n", "DDP502"),
        ("save()  # noqa: DDP502  # noqa: DDP201\n", "DDP201"),
        ("x = 1  # noqa: DDP999\n", "unknown rule `DDP999`"),
        ("x = 1  # validate-ddp: ignore[save-on-evry-rank]\n", "did you mean DDP502"),
        ("x = 1  # validate-ddp: ignroe\n", "did you mean `ignore`?"),
        ("x = 1  # validate-ddp:\n", "unknown directive ``"),
        ("# validate-ddp: on[DDP502]\n", "takes no rules"),
        ("x = 1  # validate-ddp: ignore[\n", "no `]`"),
        ("x = 1  # validate-ddp: ignore[ ,]\n", "names no rule"),
        ("x = 1  # validate-ddp: on\n", "line of its own"),
    ],
)
def test_idle_and_wrong_comments_are_reported(text: str, words: str) -> None:
    _, messages = run(text)
    assert len(messages) == 1 and words in messages[0]


@pytest.mark.parametrize(
    "text",
    [
        "x = 1  # noqa\n",
        "x = 1  # noqa: E501\n",
        "x = 1  # noqa: E501, F401 and why\n",
        "x = 1  # noqa: some-other-tool\n",
        "x = 1  # validate-ddp: ignore[DDP502, DDP003]\n",
        "save()  # validate-ddp: ignore\n",
        "# validate-ddp: on\n",
        "x = '# noqa: DDP502'\n",
        "# validate-ddp is a tool, and noqa: DDP502 is what it reads\n",
    ],
)
def test_comments_that_are_in_use_or_not_ours_are_not_reported(text: str) -> None:
    assert run(text)[1] == []


def test_only_rules_of_this_run_can_be_idle() -> None:
    text = "x = 1  # noqa: DDP502\nx = 1  # validate-ddp: ignore\nx = 1  # noqa: DDP201\n"
    assert len(run(text, enabled=frozenset(("DDP201", "DDP003")))[1]) == 1
    assert run(text, enabled=ALL - {"DDP003"})[1] == []


def test_an_idle_comment_is_found_at_the_comment() -> None:
    text = "é = 1  # hello  # noqa: DDP502\n"
    (finding,) = suppress(text, "x.py", [], ALL).unused
    assert (finding.code, finding.name, finding.severity) == ("DDP003", "unused-suppression", "warning")
    assert text[finding.column - 1 : finding.end_column - 1] == "# noqa: DDP502"
    cells = (Cell(1, 1, 2), Cell(2, 4, 3))
    (finding,) = suppress("# m\n\n# m\n\nx  # noqa: DDP502\n", "x.ipynb", [], ALL, cells).unused
    assert (finding.cell, finding.line) == (2, 2)


def test_lines_of_ipython_in_a_notebook_are_no_suppressions() -> None:
    from validate_ddp.source.notebooks import from_bytes
    from validate_ddp.source.text import Source

    lines = ["%matplotlib inline\\n", "!ls\\n", "ignore?\\n", "x = %time 1\\n", "save()  # validate-ddp: ignore"]
    for count in (4, 5):
        listed = ", ".join(f'"{line}"' for line in lines[:count])
        data = f'{{"cells": [{{"cell_type": "code", "metadata": {{}}, "source": [{listed}]}}], "nbformat": 4}}'
        source = from_bytes("n.ipynb", data.encode())
        assert isinstance(source, Source) and source.cells
        result = suppress(source.text, "n.ipynb", propose(source.text), ALL, source.cells)
        assert result == ([], [])


def test_text_without_our_comments_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenize.generate_tokens", None)
    for text in ("x = 1\n", "from torch.nn.parallel import DDP\n", "x = 1  # noqa: E501\n"):
        assert suppress(text, "x.py", [], ALL).unused == []


def test_many_blocks_take_linear_time() -> None:
    text = "# validate-ddp: off[DDP201]\n" * 20_000 + "save()\n"
    kept, _ = run(text, enabled=ALL - {"DDP201"})
    assert kept == [20_001]


DIRECTIVES = ["# noqa", ": DDP502", "# validate-ddp:", " ignore", "[", "]", "DDP201", ",", "off", " on", "-file", ":"]
CODE = [*'\n\r\t"()\\é\x0c\x00}#', "    ", "save()", "'''", "if x:", "f'{", "0x"]
PIECES = st.sampled_from([*DIRECTIVES, *CODE, "\ud800"])


@given(st.lists(PIECES, max_size=25).map("".join), st.lists(st.tuples(*[st.integers(-1, 9)] * 4), max_size=3))
@settings(max_examples=300)
def test_nothing_raises(text: str, spans: list[tuple[int, int, int, int]]) -> None:
    proposals = [Proposal("DDP502", "error", "x.py", Span(*span), Span(*span), "m", ("", "")) for span in spans]
    result = suppress(text, "x.py", proposals, ALL)
    assert all(proposal in proposals for proposal in result.kept)
    assert all(finding.code == "DDP003" and finding.message.isprintable() for finding in result.unused)
