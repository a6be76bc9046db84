"""Edits change the text as they say, and nothing else."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from syntax_nodes import edit, fix, fix_of, nodes, span_of
from validate_ddp.edit.apply import apply, apply_all
from validate_ddp.findings import Edit, Fix, Span

BEFORE = {
    "in a loop": ("for e in x:\n    f()\n", "for e in x:\n    N\n    f()\n"),
    "above its comments": (
        "for e in x:\n    # c\n    # d\n    f()\n",
        "for e in x:\n    N\n    # c\n    # d\n    f()\n",
    ),
    "not above other comments": ("for e in x:\n# c\n    f()\n", "for e in x:\n# c\n    N\n    f()\n"),
    "sharing the header's line": ("for e in x: f()\n", "for e in x: N; f()\n"),
    "behind a semicolon": ("a = 1; f()  # c\n", "a = 1; N; f()  # c\n"),
    "behind a continued header": ("if x: \\\n  f()\n", "if x: \\\n  N; f()\n"),
    "below a comment that ends in a backslash": ("# c \\\nf()\n", "N\n# c \\\nf()\n"),
    "at the end without a newline": ("f()", "N\nf()"),
    "with tabs and carriage returns": ("if x:\r\n\tf()\r\n", "if x:\r\n\tN\r\n\tf()\r\n"),
    "with lone carriage returns": ("if x:\r\tf()\r", "if x:\r\tN\r\tf()\r"),
    "behind a form feed": ("x = 1\n\x0cf()\n", "x = 1\n\x0cN\n\x0cf()\n"),
    "on several lines": ("f(\n  1,\n)\n", "N\nf(\n  1,\n)\n"),
    "behind wide characters": ("é = '日本'; f()\n", "é = '日本'; N; f()\n"),
}


@pytest.mark.parametrize("name", sorted(BEFORE))
def test_insert_before(name: str) -> None:
    text, expected = BEFORE[name]
    statement = next(node for node in nodes(text, ast.Expr))
    result = edit(text, "insert_before", statement, "new(e)")
    assert result.texts == {"x.py": expected.replace("N", "new(e)")}, result.declined
    assert len(result.done) == 1


AFTER = {
    "in a block": ("if x:\n    f()  # c\ny\n", "if x:\n    f()  # c\n    N\ny\n"),
    "before a semicolon": ("f(); y  # c\n", "f(); N; y  # c\n"),
    "at the end without a newline": ("if x:\n    f()", "if x:\n    f()\n    N"),
    "sharing the header's line": ("if x: f()\ny\n", "if x: f(); N\ny\n"),
    "with carriage returns": ("f()\r\ny\r\n", "f()\r\nN\r\ny\r\n"),
    "before a lone semicolon": ("f();\ny\n", "f(); N;\ny\n"),
    "on several lines": ("f(\n  1,\n)  # c\ny\n", "f(\n  1,\n)  # c\nN\ny\n"),
}


@pytest.mark.parametrize("name", sorted(AFTER))
def test_insert_after(name: str) -> None:
    text, expected = AFTER[name]
    result = edit(text, "insert_after", nodes(text, ast.Expr)[0], "new(e)")
    assert result.texts == {"x.py": expected.replace("N", "new(e)")}, result.declined


def test_insert_after_a_compound_statement() -> None:
    for text, expected in (
        ("for x in y: f();\nz\n", "for x in y: f();\nnew()\nz\n"),
        ("if 1:\n  for x in y:\n    f()\n  z\n", "if 1:\n  for x in y:\n    f()\n  new()\n  z\n"),
    ):
        assert edit(text, "insert_after", nodes(text, ast.For)[0], "new()").texts == {"x.py": expected}


def test_decorators_stay_with_their_function() -> None:
    text = "class A:\n  # c\n  @d(\n    1)\n  def f(): pass\n"
    result = edit(text, "insert_before", nodes(text, ast.FunctionDef)[0], "x = 1")
    assert result.texts["x.py"] == "class A:\n  x = 1\n  # c\n  @d(\n    1)\n  def f(): pass\n"


def test_compound_statements_are_laid_out_as_the_place() -> None:
    text = "if x:\n\tf()\n"
    result = edit(text, "insert_before", nodes(text, ast.Expr)[0], "if rank == 0:\n    new()\nelse:\n  old()")
    assert ast.unparse(ast.parse(result.texts["x.py"])) == (
        "if x:\n    if rank == 0:\n        new()\n    else:\n        old()\n    f()"
    )
    assert result.texts["x.py"].endswith("\tf()\n")


DECLINED = [
    ("if a: pass\nelif b: pass\n", "insert_before", ast.If, 1, "new()", "elif"),
    ("for e in x: f()\n", "insert_before", ast.Expr, 0, "if x: y", "shares its line"),
    ("x = '''\n# c'''\ny\n", "insert_before", ast.Expr, 0, "new()", "mean"),
    ("f()\n", "insert_before", ast.Call, 0, "'''a\nb'''\nif x:\n  '''a\nb'''", ""),
    ("f()\n", "insert_before", ast.Expr, 0, "new(", "cannot be read"),
    ("f()\n", "insert_before", ast.Expr, 0, "return 1 +", "cannot be read"),
    ("x = f'{y}'\n", "replace", ast.Name, 1, "z", "f-string"),
    ("f(x)\n", "replace", ast.Name, 1, "y; z", "not one expression"),
    ("f(x)\n", "replace", ast.Name, 1, "y) + (z", "cannot be read"),
    ("f(x)\n", "replace", ast.Name, 1, "*y", ""),
    ("f(a=1)\n", "add_argument", ast.Call, 0, "a=2", "has an argument `a`"),
    ("f(x for x in y)\n", "add_argument", ast.Call, 0, "a=2", "mean"),
    ("f(x)\n", "add_argument", ast.Call, 0, "2", "no name"),
    ("f(x)\n", "add_argument", ast.Call, 0, "a=2, b=3", "not one argument"),
    ("f(x)\n", "add_argument", ast.Name, 0, "a=2", "no call"),
    ("f(x)\n", "remove", ast.Call, 0, "", "unknown kind"),
]


@pytest.mark.parametrize(("text", "kind", "node", "index", "code", "reason"), DECLINED)
def test_what_cannot_be_done_rightly_is_declined(
    text: str, kind: str, node: type[ast.AST], index: int, code: str, reason: str
) -> None:
    result = edit(text, kind, nodes(text, node)[index], code)
    if reason or result.declined:
        assert result.texts == {} and result.done == ()
        assert reason in result.declined[0][1]
    else:
        ast.parse(result.texts["x.py"])


REPLACED = [
    ("x = a.b + c\n", "y", "x = y + c\n"),
    ("x = a.b + c\n", "p if q else r", "x = (p if q else r) + c\n"),
    ("x = f(a.b)\n", "p if q else r", "x = f(p if q else r)\n"),
    ("x = f(a.b, 1)\n", "p, q", "x = f((p, q), 1)\n"),
    ("x = f(k=a.b)\n", "p + q", "x = f(k=p + q)\n"),
    ("x = (a.b)\n", "p + q", "x = (p + q)\n"),
    ("return_(a.b).c\n", "x.y(1)", "return_(x.y(1)).c\n"),
    ("é = '日'; x = a.b\r\n", "y", "é = '日'; x = y\r\n"),
    ("x = -a.b\n", "p ** q", "x = -(p ** q)\n"),
    ("x = a.b\n", "(yield)", "x = ((yield))\n"),
]


@pytest.mark.parametrize(("text", "code", "expected"), REPLACED)
def test_replace(text: str, code: str, expected: str) -> None:
    result = edit(text, "replace", next(n for n in nodes(text, ast.Attribute) if n.attr == "b"), code)
    assert result.texts == {"x.py": expected}, result.declined


CALLS = {
    "f()": "f(N)",
    "f( )": "f(N )",
    "f(a)": "f(a, N)",
    "f(a,)": "f(a, N)",
    "f(a, b=1 )": "f(a, b=1, N )",
    "f((a))": "f((a), N)",
    "f(*a, **b)": "f(*a, **b, N)",
    "f(é, '日')": "f(é, '日', N)",
    "f(a,\n  b)": "f(a,\n  b, N)",
    "f(\n  a,\n  b,  # c\n)": "f(\n  a,\n  b,  # c\n  N,\n)",
    "f(\n  a,\n  b  # c\n  # d\n)": "f(\n  a,\n  b,  # c\n  N\n  # d\n)",
    "f(\n  a,\n  b\n)": "f(\n  a,\n  b,\n  N\n)",
    "f(\r\n\ta,\r\n\t)": "f(\r\n\ta,\r\n\tN,\r\n\t)",
    "f(g(\n  a\n))": "f(g(\n  a\n), N)",
    "f(\n  g(\n    1\n  ),\n)": "f(\n  g(\n    1\n  ),\n  N,\n)",
    "f(')', \"(\", '''\n)''')": "f(')', \"(\", '''\n)''', N)",
    "f(a, # )\n  )": "f(a, N # )\n  )",
    "f\\\n(a)": "f\\\n(a, N)",
    "f(a \\\n)": "f(a, N \\\n)",
    "f(lambda: 0)": "f(lambda: 0, N)",
}


@pytest.mark.parametrize("call", sorted(CALLS))
def test_add_argument(call: str) -> None:
    text = f"é = x; y = {call}; z\n"
    result = edit(text, "add_argument", nodes(text, ast.Call)[0], 'device="cpu"')
    assert result.texts == {"x.py": text.replace(call, CALLS[call].replace("N", 'device="cpu"'))}, result.declined


def test_equal_edits_of_two_fixes_are_done_once() -> None:
    text = "f()\n"
    (node,) = nodes(text, ast.Expr)
    one = fix("insert_before", node, "new()")
    result = apply(text, [one, one._replace(title="u")], "x.py")
    assert result.texts == {"x.py": "new()\nf()\n"} and len(result.done) == 2


def test_of_fixes_in_conflict_the_first_is_done_and_the_others_wait() -> None:
    text = "f(a)\n"
    call, argument = nodes(text, ast.Call)[0], nodes(text, ast.Name)[1]
    fixes = [
        fix("replace", call, "g()"),
        fix("replace", argument, "b"),
        fix("insert_before", nodes(text, ast.Expr)[0], "new()"),
    ]
    result = apply(text, fixes, "x.py")
    assert result.texts == {"x.py": "g()\n"}
    assert result.done == (fixes[0],) and set(result.deferred) == set(fixes[1:])


def test_a_fix_is_done_whole_or_not_at_all() -> None:
    text = "f(a)\ng(b)\n"
    first, second = nodes(text, ast.Call)
    result = apply(text, [fix_of(("add_argument", first, "k=1"), ("add_argument", second, "k="))], "x.py")
    assert result.texts == {} and len(result.declined) == 1


def test_a_fix_that_spoils_the_file_does_not_take_the_others_with_it() -> None:
    text = "f(x for x in y)\ng(b)\n"
    fixes = [fix("add_argument", node, "k=1") for node in nodes(text, ast.Call)]
    result = apply(text, fixes, "x.py")
    assert result.texts == {"x.py": "f(x for x in y)\ng(b, k=1)\n"}
    assert result.done == (fixes[1],) and result.declined[0][0] == fixes[0]


def test_edits_over_several_files() -> None:
    texts = {"a.py": "f()\n", "b.py": "g()\n"}
    edits = tuple(
        Edit("insert_before", path, span_of(nodes(text, ast.Expr)[0]), "new()") for path, text in texts.items()
    )
    result = apply_all(texts, [Fix("t", True, edits)])
    assert result.texts == {"a.py": "new()\nf()\n", "b.py": "new()\ng()\n"}
    result = apply_all({"a.py": "f()\n"}, [Fix("t", True, edits)])
    assert result.texts == {} and "b.py is not at hand" in result.declined[0][1]


def test_text_that_does_not_parse_is_left_alone() -> None:
    result = apply("f(\n", [Fix("t", True, (Edit("insert_before", "x.py", Span(1, 0, 1, 1), "new()"),))], "x.py")
    assert result.texts == {} and "does not parse" in result.declined[0][1]


LINES = st.sampled_from(
    [
        "f(a)",
        "x = f(g(b), c=1)",
        "if f(a): f(b); g()",
        "for i in f(a):\n    g(i)\n    # c\n    h(i)",
        "é = f('日')",
        "",
        "# comment",
        "f(\n    a,  # c\n    b,\n)",
        "@d\ndef k():\n\treturn f(a)",
        "x = '''\nf(a)\n'''",
        "with f(a) as b: g(b)",
    ]
)


@given(st.lists(LINES, min_size=1, max_size=5), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.data())
@settings(max_examples=200)
def test_any_edit_of_real_code_adds_its_text_and_keeps_every_other_byte(
    lines: list[str], newline: str, ended: bool, data: st.DataObject
) -> None:
    text = newline.join(lines).replace("\r\n", "\n").replace("\n", newline) + (newline if ended else "")
    kind = data.draw(st.sampled_from(["insert_before", "insert_after", "add_argument"]))
    places = nodes(text, ast.Call if kind == "add_argument" else ast.stmt)
    assume(places)
    chosen = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True))
    code = "added_=1" if kind == "add_argument" else "added_()"
    result = apply(text, [fix(kind, node, code) for node in chosen], "x.py")
    assert len(result.done) + len(result.deferred) + len(result.declined) == len(chosen)
    after = result.texts.get("x.py", text)
    assert after.count("added_") == text.count("added_") + len(result.done)
    # Taking the letters of the old text away from the new one, in their order, leaves additions only.
    rest = iter(after)
    assert all(any(character == other for other in rest) for character in text)
    kept = sorted(re.sub(r"[\s;,]", "", after.replace(code, "")))
    assert kept == sorted(re.sub(r"[\s;,]", "", text))
    if result.texts:
        ast.parse(result.texts["x.py"])


SPANS = st.builds(Span, *[st.integers(-1, 9)] * 4)
KINDS = st.sampled_from(["insert_before", "insert_after", "replace", "add_argument", "other"])
CODES = st.one_of(
    st.text(max_size=12), st.sampled_from(["x", "k=1", "f(", "x; y", "if x:\n  y", "(", "'", "\\", "#", "\x00"])
)


@given(st.one_of(st.text(max_size=40), LINES), st.lists(st.tuples(KINDS, SPANS, CODES), max_size=3))
@settings(max_examples=300)
def test_no_text_and_no_edit_raises(text: str, edits: list[tuple[str, Span, str]]) -> None:
    fixes = [Fix("t", True, (Edit(kind, "x.py", span, code),)) for kind, span, code in edits]
    result = apply(text, fixes, "x.py")
    assert len(set(fixes)) == len(result.done) + len(result.deferred) + len(result.declined)
    for changed in result.texts.values():
        ast.parse(changed)
