"""The kinds of edits that take statements in, take arguments away, or add imports change nothing else."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from syntax_nodes import edit, fix, fix_of, nodes
from validate_ddp.edit.apply import apply
from validate_ddp.findings import Span


def calling(text: str, name: str = "save") -> Any:
    """The innermost statement that calls ``name``."""
    statements = nodes(text, ast.stmt)
    return [node for node in statements if f"{name}(" in ast.unparse(node) and f"{name}(" in _header(node)][-1]


def _header(node: Any) -> str:
    lines = ast.unparse(node).split("\n")
    return next(line for line in lines if not line.startswith("@"))


GUARDED = {
    "a statement": ("save(x)\n", "if r:\n    save(x)\n"),
    "in a block, with a comment above and behind": (
        "if a:\n  # c\n  save(x)  # d\n  b\n",
        "if a:\n  # c\n  if r:\n    save(x)  # d\n  b\n",
    ),
    "on several lines": (
        "save(\n    x,\n\n    # c\n    y,\n)\n",
        "if r:\n    save(\n        x,\n\n        # c\n        y,\n    )\n",
    ),
    "with a string on several lines": ("save('''\na\n  b''',\n  y)\n", "if r:\n    save('''\na\n  b''',\n      y)\n"),
    "with an f-string": ("save(f'''\n{\nx}\n  b''',\n  y)\n", "if r:\n    save(f'''\n{\nx}\n  b''',\n      y)\n"),
    "with tabs and carriage returns": ("if a:\r\n\tsave(x)\r\n\tb\r\n", "if a:\r\n\tif r:\r\n\t\tsave(x)\r\n\tb\r\n"),
    "with lone carriage returns": ("if a:\r\tsave(x,\r\ty)\r", "if a:\r\tif r:\r\t\tsave(x,\r\t\ty)\r"),
    "with eight spaces a step": ("if a:\n        b\nsave(x)\n", "if a:\n        b\nif r:\n        save(x)\n"),
    "at the end without a newline": ("save(x)", "if r:\n    save(x)"),
    "a block": (
        "with save(x) as f:\n  # c\n  f()\n# d\nb\n",
        "if r:\n  with save(x) as f:\n    # c\n    f()\n# d\nb\n",
    ),
    "a block whose comments are not indented": (
        "if a:\n  with save(x):\n# c\n    f()\n\n    g()\n",
        "if a:\n  if r:\n    with save(x):\n  # c\n      f()\n\n      g()\n",
    ),
    "a block in one line": ("with save(x): f();\n", "if r:\n    with save(x): f();\n"),
    "a whole chain of branches": (
        "if save(x):\n  a\nelif b:\n  c\nelse:\n  d\n",
        "if r:\n  if save(x):\n    a\n  elif b:\n    c\n  else:\n    d\n",
    ),
    "a decorated function": (
        "class A:\n  @d(\n    1)\n  def save(x):\n    y\n",
        "class A:\n  if r:\n    @d(\n      1)\n    def save(x):\n      y\n",
    ),
    "before a semicolon": ("save(x); b  # c\n", "if r:\n    save(x)\nb  # c\n"),
    "behind a semicolon": ("if 1:\n  a ; save(x)\n", "if 1:\n  a\n  if r:\n    save(x)\n"),
    "between semicolons": ("a;save(x);b;\n", "a\nif r:\n    save(x)\nb;\n"),
    "behind a colon": ("if a: save(x)  # c\nb\n", "if a:\n    if r:\n        save(x)  # c\nb\n"),
    "behind a colon, of several": ("if 1:\n  if a: b; save(x)\n", "if 1:\n  if a:\n    b\n    if r:\n      save(x)\n"),
    "behind an else": ("if a: b\nelse: save(x)\n", "if a: b\nelse:\n    if r:\n        save(x)\n"),
    "behind wide characters": ("é = '日'; save(x)\n", "é = '日'\nif r:\n    save(x)\n"),
    "continued by a backslash": ("save(x) \\\n  + 1\n", "if r:\n    save(x) \\\n      + 1\n"),
}


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_guard(name: str) -> None:
    text, expected = GUARDED[name]
    result = edit(text, "guard", calling(text), "r")
    assert result.texts == {"x.py": expected}, result.declined


NOT_GUARDED = [
    ("if a: pass\nelif save(x): pass\n", "r", "elif"),
    ("try: save(x)\nfinally: y\n", "r, s", "not a condition"),
    ("save(x)\n", "r:", "not one expression"),
    ("if a: \\\n  save(x)\n", "r", "shares its line"),
    ("x = '''\n'''; save(x); y = '''\n'''\n", "r", "shares its line"),
]


@pytest.mark.parametrize(("text", "condition", "reason"), NOT_GUARDED)
def test_what_cannot_be_guarded_is_declined(text: str, condition: str, reason: str) -> None:
    result = edit(text, "guard", calling(text), condition)
    if result.texts:
        ast.parse(result.texts["x.py"])
    else:
        assert reason in result.declined[0][1] or "cannot be read" in result.declined[0][1]


def test_a_guard_goes_with_edits_inside_of_the_statement() -> None:
    text = "import os\n\nf()\nsave(x, y=1)\n"
    statement, call = calling(text), nodes(text, ast.Call)[1]
    fixes = [
        fix("guard", statement, "r"),
        fix("remove_argument", call, "y"),
        fix("replace", call.args[0], "z.a"),
        fix("insert_before", nodes(text, ast.Expr)[0], "new()"),
    ]
    result = apply(text, fixes, "x.py")
    assert result.texts == {"x.py": "import os\n\nnew()\nf()\nif r:\n    save(z.a)\n"}
    assert set(result.done) == set(fixes)


def test_neighbours_under_one_condition_share_it() -> None:
    text = "if a:\n  save(x)\n\n  save(y,\n    z)\n  # c\n  save(z)\n  b()\n"
    fixes = [fix("guard", node, "r") for node in nodes(text, ast.Expr) if "save" in ast.unparse(node)]
    result = apply(text, fixes, "x.py")
    expected = "if a:\n  if r:\n    save(x)\n\n    save(y,\n      z)\n  # c\n  if r:\n    save(z)\n  b()\n"
    assert result.texts == {"x.py": expected} and result.done == tuple(fixes)


APPENDED = {
    "to a module": ("save(x)\ny\n", "save(x)\ny\nN\n"),
    "to a module without a newline": ("save(x)", "save(x)\nN"),
    "to a function": (
        "def f():\n  save(x)\n  for a in b:\n    c\n\n\nd\n",
        "def f():\n  save(x)\n  for a in b:\n    c\n  N\n\n\nd\n",
    ),
    "to a main block": ("if a:\n\tsave(x)\n\ty  # c\n", "if a:\n\tsave(x)\n\ty  # c\n\tN\n"),
    "to one line": ("if a: save(x); y\n", "if a: save(x); y; N\n"),
}


@pytest.mark.parametrize("name", sorted(APPENDED))
def test_append(name: str) -> None:
    text, expected = APPENDED[name]
    result = edit(text, "append", calling(text), "new()")
    assert result.texts == {"x.py": expected.replace("N", "new()")}, result.declined


def test_nothing_is_put_where_it_is_never_reached() -> None:
    result = edit("def f():\n  save(x)\n  return 1\n", "append", calling("def f():\n  save(x)\n  return 1\n"), "new()")
    assert "nothing is reached" in result.declined[0][1]


REMOVED = {
    "f(a=1)": "f()",
    "f(a=1,)": "f()",
    "f( a=1 )": "f( )",
    "f(b, a=1)": "f(b)",
    "f(b, a=1, )": "f(b, )",
    "f(b, a=(1), c=2)": "f(b, c=2)",
    "f(b, a=(1))": "f(b)",
    "f(a=1, c=2)": "f(c=2)",
    "f(**b, a=g(a=1))": "f(**b)",
    "f(a=g(a=1), **b)": "f(**b)",
    "f(\n  b,\n  a=1,\n)": "f(\n  b,\n)",
    "f(\n  a=1,  # c\n  b=2)": "f(\n  b=2)",
    "f(\n  b,\n  a=1\n)": "f(\n  b,\n)",
    "f(b,\n  a=1)": "f(b)",
    "f(b,  # c\n  a=1)": "f(b,  # c\n)",
    "f(b, a=1,\n  c=2)": "f(b,\n  c=2)",
    "f(b, a=1,  # c\n  c=2)": "f(b,  # c\n  c=2)",
    "f(b\n  , a=1\n  , c=2)": "f(b\n  , c=2)",
    "f(\r\n\tb,\r\n\ta=1,\r\n)": "f(\r\n\tb,\r\n)",
    "f('é', a='日', c=1)": "f('é', c=1)",
    "f(b, a=[\n  1,\n], c=2)": "f(b, c=2)",
}


@pytest.mark.parametrize("call", sorted(REMOVED))
def test_remove_argument(call: str) -> None:
    text = f"é = x; y = {call}; z\n"
    result = edit(text, "remove_argument", nodes(text, ast.Call)[0], "a")
    after = result.texts.get("x.py", "")
    expected = text.replace(call, REMOVED[call])
    assert after.replace("\n  , c", "\n, c") == expected.replace("\n  , c", "\n, c"), result.declined


def test_an_argument_that_is_not_there_is_not_removed() -> None:
    for text in ("f(b)\n", "f(a)\n", "f(**a)\n"):
        assert edit(text, "remove_argument", nodes(text, ast.Call)[0], "a").declined


@pytest.mark.parametrize(
    ("call", "code", "expected"),
    [
        ("f(x, a=True)", "a, a=b is None", "f(x, a=b is None)"),
        ("f(x, a=(True), c=1)", "a, b=g(x)", "f(x, b=g(x), c=1)"),
        ("f(\n  a = True,  # c\n)", "a, b=1", "f(\n  b=1,  # c\n)"),
        ("f(a=1, b=2)", "a, b=1", None),
        ("f(a=1)", "b, b=1", None),
        ("f(a=1)", "a", None),
    ],
)
def test_replace_argument(call: str, code: str, expected: str | None) -> None:
    text = f"é = x; y = {call}; z\n"
    result = edit(text, "replace_argument", nodes(text, ast.Call)[0], code)
    assert result.texts == ({} if expected is None else {"x.py": text.replace(call, expected)}), result.declined


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("f(r)", "f(l)"),
        ("r.f(a.r, [r], k=g(r), **r)", "r.f(a.r, [l], k=g(l), **l)"),
        ("f(f'{r}', lambda: r)", None),
        ("f(a)", None),
    ],
)
def test_rename_in_arguments(call: str, expected: str | None) -> None:
    text = f"é = r; y = {call}; r\n"
    result = edit(text, "rename_in_arguments", nodes(text, ast.Call)[0], "r, l")
    assert result.texts == ({} if expected is None else {"x.py": text.replace(call, expected)}), result.declined


IMPORTED = {
    "behind the others": ("import torch\nuse()\n", "import torch\nimport os\nuse()\n"),
    "behind the head's, not a later one": (
        "import torch\nx = 1\nimport sys\ndef f(): pass\nimport re\nuse()\n",
        "import torch\nx = 1\nimport sys\nimport os\ndef f(): pass\nimport re\nuse()\n",
    ),
    "above what needs it": ("import torch\nuse()\nimport sys\n", "import torch\nimport os\nuse()\nimport sys\n"),
    "in brackets": ("from a import (\n  b,\n)\nuse()\n", "from a import (\n  b,\n)\nimport os\nuse()\n"),
    "sharing a line": ("import a; import b\nuse()\n", "import a; import b; import os\nuse()\n"),
    "behind the future": (
        '"""D."""\nfrom __future__ import annotations\nuse()\n',
        '"""D."""\nfrom __future__ import annotations\nimport os\nuse()\n',
    ),
    "where there is none": ('#!/bin/sh\n"""D."""\n\n# c\nuse()\n', '#!/bin/sh\n"""D."""\n\n# c\nimport os\nuse()\n'),
    "with carriage returns": ("import a\r\nuse()\r\n", "import a\r\nimport os\r\nuse()\r\n"),
    "not twice": ("import sys, os.path\nuse()\n", None),
    "though a function imports it": (
        "import a\ndef f():\n  import os\nuse()\n",
        "import a\nimport os\ndef f():\n  import os\nuse()\n",
    ),
}


@pytest.mark.parametrize("name", sorted(IMPORTED))
def test_add_import(name: str) -> None:
    text, expected = IMPORTED[name]
    (place,) = [node for node in nodes(text, ast.Call) if node.func.id == "use"]
    fixed = fix_of(("add_import", Span(9, 9, 9, 9), "import os"), ("add_argument", place, "a=1"))
    result = apply(text, [fixed], "x.py")
    wanted = text if expected is None else expected
    assert result.texts == {"x.py": wanted.replace("use()", "use(a=1)")}, result.declined


def test_imports_of_several_fixes_come_once_each() -> None:
    text = "import torch\nf(a)\nf(b)\n"
    one, other = nodes(text, ast.Call)
    fixes = [
        fix_of(("replace", one.args[0], "os.a"), ("add_import", one, "import os")),
        fix_of(
            ("add_import", other, "from datetime import timedelta"),
            ("add_import", other, "import os"),
            ("replace", other.args[0], "timedelta(os.b)"),
        ),
    ]
    result = apply(text, fixes, "x.py")
    head = "import torch\nfrom datetime import timedelta\nimport os\n"
    assert result.texts == {"x.py": head + "f(os.a)\nf(timedelta(os.b))\n"}, result
    assert set(result.done) == set(fixes)


@pytest.mark.parametrize(
    ("text", "code", "added"),
    [
        ("from datetime import datetime\nx\n", "import datetime", False),
        ("def f(os): pass\nx\n", "import os", False),
        ("os = 1\nx\n", "import os", False),
        ("import torch.distributed as dist\nx\n", "from torch import distributed as dist", True),
        ("import a.os as os\nx\n", "import os", False),
        ("import torch\nx\n", "import torch.distributed as dist", True),
        ("x\n", "os = 1", False),
        ("x\n", "import (", False),
    ],
)
def test_an_import_takes_no_name_that_means_something_else(text: str, code: str, added: bool) -> None:
    result = apply(text, [fix_of(("add_import", Span(1, 0, 1, 0), code))], "x.py")
    assert bool(result.done) is added
    for changed in result.texts.values():
        ast.parse(changed)


LINES = st.sampled_from(
    [
        "f(a)",
        "x = f(g(b), c=1)",
        "if f(a): f(b); g()",
        "for i in f(a):\n    g(i)\n    # c\n    h(i, c=(2), d=3)\nelse:\n    k()",
        "é = f('日', c=2)",
        "",
        "  # comment",
        "f(\n    a,  # c\n    c=b,\n)",
        "@d\ndef k():\n\treturn f(a)",
        "x = '''\nf(a)\n'''",
        "x = f'''\n  {f(a,\n  c=1)}\n'''; y = [\n1]",
        "with f(a) as b: g(b)",
        "try:\n  a\nexcept B: c; d = 1\nfinally: e",
        "import sys; z = 1",
        "match a:\n  case 1: b\n  case _:\n    c",
        "a = 1 + \\\n 2",
    ]
)
CODES = {"guard": "added_ == 0", "append": "added_()", "add_import": "import added_", "remove_argument": "c"}


@given(st.lists(LINES, min_size=1, max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), st.data())
@settings(max_examples=150)
def test_any_such_edit_keeps_every_other_byte(lines: list[str], newline: str, ended: bool, data: st.DataObject) -> None:
    text = "\n".join(lines).replace("\n", newline) + (newline if ended else "")
    kind = data.draw(st.sampled_from(sorted(CODES)))
    places = nodes(text, ast.Call if kind == "remove_argument" else ast.stmt)
    assume(places)
    chosen = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True))
    fixes = [fix(kind, node, CODES[kind]) for node in chosen]
    result = apply(text, fixes, "x.py")
    assert len(result.done) + len(result.deferred) + len(result.declined) == len(set(fixes))
    after = result.texts.get("x.py", text)
    ast.parse(after)
    if kind == "remove_argument":
        rest = iter(text)
        assert all(any(character == other for other in rest) for character in after)
        return
    # Blanks aside, the old text with the new code taken out of it is what was there.
    added = {"guard": "if added_ == 0:", "append": "added_()", "add_import": "import added_"}[kind]
    assert _bare(after.replace(added, "")) == _bare(text)
    if kind == "add_import" and result.done:
        assert after.count(added) == 1


def _bare(text: str) -> str:
    return "".join(character for character in text if character not in " \t\r\n;")
