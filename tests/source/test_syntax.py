"""Every kind of syntax node is lowered to and walked, and what goes through nodes reaches all of them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from validate_ddp.interpreter import expressions, statements
from validate_ddp.source import syntax
from validate_ddp.source.lowering import lower
from validate_ddp.source.traversal import children, dotted, is_same, walk

EVERYTHING = textwrap.dedent(
    """
    import os as system
    from .. import near
    @wrap
    class A(B):
        pass
    def f(a, b=1, *rest, c: int = -2, **more):
        global x
        yield [a, *b], {**c, "d": lambda: e}
        yield from (await_ for await_ in {k: v for k in q if r})
        return f"{a}{'b'}"
    for i in (1, 2):
        if not i and i < 3 or i:
            continue
        elif (y := i):
            break
    while True:
        x[0] += a.b(c, d=e, **g) + 1 if h else ~i
    with open(a) as b, c:
        raise d from e
    try:
        assert t
    except (E, F) as error:
        z: int = 3
    match m:
        case [n, *o] if n:
            pass
    """
)


def body(text: str) -> list[syntax.Statement]:
    return lower(ast.parse(text))


def test_every_kind_is_made_and_walked() -> None:
    assert {type(node) for node in walk(body(EVERYTHING))} == syntax.EXPRESSIONS | syntax.STATEMENTS


@pytest.mark.parametrize(
    ("table", "kinds"),
    [(expressions._EXPRESSIONS, syntax.EXPRESSIONS), (statements._STATEMENTS, syntax.STATEMENTS)],
    ids=["expressions", "statements"],
)
def test_every_kind_goes_to_a_function_that_is_for_it(
    table: dict[type, Callable[..., Any]], kinds: frozenset[type]
) -> None:
    assert table.keys() == kinds
    for kind, handler in table.items():
        said = str(list(inspect.signature(handler).parameters.values())[1].annotation)
        named = {part.strip().removeprefix("syntax.") for part in said.split("|")}
        assert kind.__name__ in named or handler.__name__ == "<lambda>", (kind, handler)


def test_a_walk_is_in_the_order_of_the_text() -> None:
    names = [node.id for node in walk(body("a = b(c, d=e)\nif f: g\nelse: h")) if isinstance(node, syntax.Name)]
    assert names == list("abcefgh")


def test_children_are_one_step_below() -> None:
    (statement,) = body("a.b(c.d, e=f)")
    (call,) = children(statement)
    assert [dotted(node) for node in children(call)] == ["a.b", "c.d", "f"]


def test_the_same_expression_is_so_wherever_it_stands() -> None:
    first, second, other = (
        node.value for node in body("x.y[z](1)\n\n  \nx.y[z](1)\nx.y[z]('1')") if hasattr(node, "value")
    )
    assert first != second and is_same(first, second)
    assert not is_same(first, other)
    assert not is_same(syntax.Name("x"), syntax.Constant("x"))


def test_a_ladder_of_elifs_is_no_deeper_than_the_stack() -> None:
    (node,) = body("if a: pass\n" + "elif b: pass\n" * 900 + "else: c\n")
    depth = 0
    while isinstance(node, syntax.If) and node.orelse:
        node = node.orelse[0]
        depth += 1
    assert depth == 901 and isinstance(node, syntax.Expr)
