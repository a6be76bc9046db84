"""Notebooks: what IPython runs as Python is read as such, and changed cells go back with nothing else moved."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from validate_ddp.source import magics
from validate_ddp.source.decoding import from_bytes
from validate_ddp.source.notebooks import splice
from validate_ddp.source.parsing import parse
from validate_ddp.source.text import Cell, Problem, Source, locate, split_lines


def code(source: Any, **more: Any) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source, **more}


def notebook(*cells: Any, **more: Any) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **more}


def as_bytes(document: Any, **options: Any) -> bytes:
    return (json.dumps(document, **{"indent": 1, "ensure_ascii": False, **options}) + "\n").encode()


def opened(document: Any) -> Source:
    source = from_bytes("a.ipynb", document if isinstance(document, bytes) else as_bytes(document))
    assert isinstance(source, Source), source
    return source


def cell_texts(source: Source) -> list[str]:
    lines = split_lines(source.text)
    assert source.cells is not None
    return ["".join(lines[cell.first_line - 1 : cell.first_line - 1 + cell.line_count]) for cell in source.cells]


# Reading


def test_code_cells_are_one_text_and_lines_lead_back_to_their_cell() -> None:
    markdown = {"cell_type": "markdown", "metadata": {}, "source": ["# no\n", "code"]}
    source = opened(notebook(markdown, code(["import a\n", "x = 1"]), markdown, code("y = 2\n"), code([]), code("z")))
    assert cell_texts(source) == ["import a\nx = 1\n", "y = 2\n\n", "\n", "z\n"]
    assert source.cells is not None and [cell.number for cell in source.cells] == [1, 2, 3, 4]
    tree = parse(source)
    assert isinstance(tree, ast.Module)
    assert [locate(source.cells, node.lineno) for node in tree.body] == [(1, 1), (1, 2), (2, 1), (4, 1)]


def test_line_outside_of_any_cell_leads_to_the_nearest() -> None:
    cells = (Cell(1, 2, 2), Cell(2, 5, 1))
    assert [locate(cells, line) for line in (1, 2, 3, 4, 5, 9)] == [(1, 1), (1, 1), (1, 2), (1, 2), (2, 1), (2, 1)]


def test_notebook_for_another_language_is_empty() -> None:
    for metadata in ({"kernelspec": {"language": "R"}}, {"language_info": {"name": "julia"}}):
        source = opened(notebook(code("x <- 1"), metadata=metadata))
        assert source.text == "" and source.cells == ()
        assert splice(source.data, "", ()) == source.data


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        None,
        [],
        {"kernelspec": None},
        {"kernelspec": {"language": "python"}},
        {"language_info": {"name": "ipython"}},
    ],
)
def test_notebook_that_names_python_or_nothing_is_read(metadata: Any) -> None:
    assert "x = 1" in opened(notebook(code("x = 1"), metadata=metadata)).text


def test_notebook_of_format_3_is_read() -> None:
    sheet = {"cells": [{"cell_type": "code", "input": ["x = 1\n", "y"], "language": "python", "outputs": []}]}
    source = opened(
        {"metadata": {"name": ""}, "nbformat": 3, "nbformat_minor": 0, "worksheets": [sheet, {"metadata": {}}]}
    )
    assert cell_texts(source) == ["x = 1\ny\n"]
    assert b'"x = 2\\n"' in splice(source.data, source.text.replace("x = 1", "x = 2"), source.cells or ())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \n",
        b"{",
        b"[]",
        b"1",
        b"null",
        b"{}",
        b'{"cells": 1}',
        b'{"cells": {}}',
        b'{"cells": [{"cell_type": "code", "source": 1}]}',
        b'{"cells": [{"cell_type": "code", "source": ["a", 1]}]}',
        b'{"worksheets": 5}',
        b'{"cells": []} x',
        b"\xff\xfe{\0}\0",
        b'{"cells": ["\xe9"]}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"not json",
        b"<<<<<<< HEAD\n{}\n=======\n",
    ],
)
def test_broken_notebook_is_a_problem_on_one_line(data: bytes) -> None:
    problem = from_bytes("a.ipynb", data)
    assert isinstance(problem, Problem) and problem.kind == "unreadable"
    assert problem.message and "\n" not in problem.message


def test_strange_cells_and_huge_numbers_are_no_reason_to_fail() -> None:
    cells: list[Any] = [1, None, {}, {"cell_type": "code"}, {"cell_type": "raw", "source": 1}, [], code("x")]
    source = opened(as_bytes(notebook(*cells)).replace(b'"nbformat": 4', b'"nbformat": ' + b"4" * 5000))
    assert cell_texts(source) == ["x\n"]


@pytest.mark.parametrize("within", ["\0", "\ud800"])
def test_text_that_cannot_be_python_is_told_with_its_cell(within: str) -> None:
    problem = from_bytes("a.ipynb", as_bytes(notebook(code("x"), code(f"'{within}'")), ensure_ascii=True))
    assert isinstance(problem, Problem) and problem.cell == 2


def test_syntax_error_is_told_as_cell_and_line_within_it() -> None:
    problem = parse(opened(notebook(code("a\nb\n"), code("\n\nx = = 1\n"))))
    assert isinstance(problem, Problem)
    assert (problem.cell, problem.line, problem.column, problem.kind) == (2, 3, 5, "syntax")


# IPython's own syntax


@pytest.mark.parametrize(
    ("cell", "kept"),
    [
        ("%matplotlib inline\nx = 1", ["x = 1"]),
        ("!pip install torch\nx = 1", ["x = 1"]),
        ("!pip install \\\n  torch \\\n  numpy\nx = 1", ["x = 1"]),
        ("if True:\n    !ls\n    %cd x\ny = 1", ["if True:", "y = 1"]),
        ("files = !ls\nx = files", ["x = files"]),
        ("a, b = %magic 1\nx = 1", ["x = 1"]),
        ("d['k'].f = !ls {x}\ny", ["y"]),
        ("model?\n?model\nmodel.fit??\nx = 1", ["x = 1"]),
        ("%%time\nx = 1\ny = 2", ["x = 1", "y = 2"]),
        ("%%capture out\n!ls\nx = 1", ["x = 1"]),
        ("%%bash\nfor i in 1 2; do\n  echo $i\ndone", []),
        ("\n%%writefile train.py\nimport torch", []),
        ("%%html\n<b>don't</b>", []),
        ("pip install torch\nx = 1", ["x = 1"]),
        ("cd ..\nls\nx = 1", ["x = 1"]),
        ("/print 1\n,f a b\n;f a\nx = 1", ["x = 1"]),
        ("!echo \"it's (\nx = 1", ["x = 1"]),
        ("x = 1  # why?\n!ls", ["x = 1  # why?"]),
        ("%time y = f(\nx = 1", ["x = 1"]),
        (" !ls \\\n   --all\n !pwd\nx = 1", ["x = 1"]),
        ("\n\t%cd x\nx = 1\nif x:\n\t\t!ls", ["x = 1", "if x:"]),
        ("%%bash\n| x\n |y\n||", []),
    ],
)
def test_ipython_syntax_is_neutralised_line_for_line(cell: str, kept: list[str]) -> None:
    source = opened(notebook(code(cell)))
    assert source.cells is not None and source.cells[0].line_count == len(cell.split("\n"))
    tree = parse(source)
    assert isinstance(tree, ast.Module), tree
    (text,) = cell_texts(source)
    original = cell.split("\n")
    for number, line in enumerate(text.rstrip("\n").split("\n")):
        if line in kept:
            assert original[number] == line
    assert [line for line in text.split("\n") if line in kept] == kept
    assert splice(source.data, source.text, source.cells) == source.data


def test_names_assigned_from_a_shell_command_stay_assigned() -> None:
    tree = parse(opened(notebook(code("files = !ls\nn = len(files)"))))
    assert isinstance(tree, ast.Module) and isinstance(tree.body[0], ast.Assign)


@pytest.mark.parametrize(
    "cell",
    [
        "x = (a\n% b)\n",
        "'''\n%not magic\n!nor this\n?\n'''\n",
        "x = a \\\n% b",
        "ls = 1\nls\npip = ls\ncat(1)\nman",
        "x = '''\n!ls'''",
        "# %%bash\nx = 1",
        "x = 5 # why?",
    ],
)
def test_python_that_looks_like_ipython_is_left_alone(cell: str) -> None:
    assert magics.neutralise(cell, "token:") == cell


@pytest.mark.parametrize(
    "cell", ["!ls\nx = (a\n% b)", "!ls\n'''\n%no\n!no\n'''", "!ls\nx = f'''{a\n%b}'''\ny = [\n'(',\n!0]"]
)
def test_only_the_start_of_a_statement_can_be_ipython(cell: str) -> None:
    first, _, rest = magics.neutralise(cell, "token:").partition("\n")
    assert "token:" in first and rest == cell.partition("\n")[2]


# Writing


def test_unchanged_text_gives_the_same_bytes() -> None:
    data = as_bytes(notebook(code("a"), code(["!ls\n", "x"])), indent=None) + b"\n \n"
    source = opened(data)
    assert splice(data, source.text, source.cells or ()) == data


def test_changed_cell_is_written_and_the_rest_stays_byte_for_byte() -> None:
    output = {"output_type": "stream", "text": ["é \\ud83d"], "x": 1.50, "y": 1e400}
    data = as_bytes(notebook(code(["a = 1\n", "b = 2"]), code("é = 1", outputs=[output]), code(["%time x\n", "z"])))
    data = data.replace(b"1.5", b"1.500")
    source = opened(data)
    changed = source.text.replace("b = 2\n", "b = 2\nset_epoch(b)\n").replace("é = 1", "é = 2")
    spliced = splice(data, changed, source.cells or ())
    expected = data.replace(b'"b = 2"', b'"b = 2\\n",\n    "set_epoch(b)"').replace("é = 1".encode(), "é = 2".encode())
    assert spliced == expected


def test_line_put_into_the_block_of_a_magic_moves_it_along() -> None:
    source = opened(notebook(code("x = 1\n!ls  -l")))
    lines = [
        "if main:\n" if line == "x = 1\n" else "    " + line if "!ls" in line else line
        for line in split_lines(source.text)
    ]
    written = json.loads(splice(source.data, "".join(lines), source.cells or ()))
    assert written["cells"][0]["source"] == "if main:\n    !ls  -l"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'["a\\n", "b"]', b'["a\\n", "c\\n", "d"]'),
        (b'[\n\t\t"a\\n",\n\t\t"b"\n\t]', b'[\n\t\t"a\\n",\n\t\t"c\\n",\n\t\t"d"\n\t]'),
        (b'"a\\nb"', b'"a\\nc\\nd"'),
        (b'"a\\u000ab"', b'"a\\nc\\nd"'),
    ],
)
def test_layout_of_the_list_of_lines_is_kept(old: bytes, new: bytes) -> None:
    data = b'{"cells" : [ {"source": "no", "cell_type":"code", "source": %s } ] }'
    source = opened(data % old)
    assert splice(source.data, source.text.replace("b\n", "c\nd\n"), source.cells or ()) == data % new


def test_escapes_are_kept_where_the_file_escapes() -> None:
    data = as_bytes(notebook(code("x = 'é'")), ensure_ascii=True)
    source = opened(data)
    assert splice(data, source.text.replace("x", "y"), source.cells or ()) == data.replace(b"x = ", b"y = ")


def test_byte_order_mark_is_kept() -> None:
    data = b"\xef\xbb\xbf" + as_bytes(notebook(code("x")))
    source = opened(data)
    assert splice(data, source.text.replace("x", "y"), source.cells or ()) == data.replace(b'"x"', b'"y"')


def test_text_without_its_cell_borders_is_refused() -> None:
    source = opened(notebook(code("a"), code("b")))
    for broken in ("", source.text.replace("cell 2", "cell 3"), "x\n" + source.text, source.text.replace("cell 1", "")):
        with pytest.raises(ValueError, match="cell"):
            splice(source.data, broken, source.cells or ())
    with pytest.raises(ValueError, match="2 code cells, not 0"):
        splice(source.data, source.text, ())


def test_cell_that_contains_the_marks_of_our_own_goes_back_unharmed() -> None:
    first = opened(notebook(code("!ls"), code("x")))
    inner = opened(notebook(code(first.text), code("!ls\n# " + first.text.split("\n")[1]), code("y")))
    assert inner.cells is not None and len(inner.cells) == 3
    changed = splice(inner.data, inner.text.replace("\ny\n", "\nz\n"), inner.cells)
    assert changed == inner.data.replace(b'"y"', b'"z"')


line = st.sampled_from(
    [
        "x = 1",
        "!ls \\",
        "%time y",
        "  !cd é",
        "%%bash",
        "%%time",
        "'''",
        "z?",
        "(",
        ")",
        "",
        "# %% validate-ddp cell 1",
        "pass  # validate-ddp:!a",
        "a = !b",
        "\x0c%x",
        "\u2028",
        "pip install a",
        "\\",
    ]
)
ending = st.sampled_from(["\n", "\n", "\r\n", "\r"])
cell_text = st.lists(st.tuples(line, ending).map("".join), max_size=5).map("".join)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(cell_text, st.booleans()), max_size=4),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
    st.data(),
)
@example([("!ls \\", False), ("x", True)], 1, False, None)
def test_any_notebook_keeps_its_lines_and_goes_back(
    cells: list[tuple[str, bool]], indent: Any, escaped: bool, data: st.DataObject | None
) -> None:
    sources = [text.splitlines(keepends=True) if as_list else text for text, as_list in cells]
    raw = as_bytes(notebook(*map(code, sources)), indent=indent, ensure_ascii=escaped)
    source = opened(raw)
    assert source.cells is not None
    for cell, (text, _) in zip(source.cells, cells, strict=True):
        assert cell.line_count == len(split_lines(text + "\n"))
    assert splice(raw, source.text, source.cells) == raw
    if data is None or not cells:
        return
    chosen = data.draw(st.sampled_from(source.cells))
    lines = split_lines(source.text)
    lines.insert(chosen.first_line - 1, "inserted = 'é'\n")
    written = json.loads(splice(raw, "".join(lines), source.cells))
    found = ["".join(cell["source"]) for cell in written["cells"]]
    expected = [text for text, _ in cells]
    expected[chosen.number - 1] = "inserted = 'é'\n" + expected[chosen.number - 1]
    assert found == expected


@given(cell_text)
def test_what_is_neutralised_is_restored(text: str) -> None:
    neutral = magics.neutralise(text, "~~token:")
    assert len(split_lines(neutral)) == len(split_lines(text))
    assert magics.restore(neutral, "~~token:") == text
