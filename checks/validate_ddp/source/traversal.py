"""Goes through syntax nodes, and answers what is often asked of one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from validate_ddp.source import syntax
from validate_ddp.source.syntax import Attribute, Expression, Name, Node, Statement

_NODES = syntax.EXPRESSIONS | syntax.STATEMENTS


def walk(within: Node | Iterable[Node]) -> Iterator[Node]:
    """A node, or each of several, and all expressions and statements in it, in the order of the fields."""
    stack: list[Any] = [within] if type(within) in _NODES else list(within)[::-1]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def children(node: Node) -> list[Node]:
    """The expressions and statements right below a node, in the order of the fields."""
    found: list[Node] = []
    stack: list[Any] = [*reversed(node)]
    while stack:
        part = stack.pop()
        kind = type(part)
        if kind in _NODES:
            found.append(part)
        elif kind is list or kind in syntax.PARTS:
            stack.extend(reversed(part))
    return found


def is_same(first: Any, second: Any) -> bool:
    """Whether two expressions, or parts of them, are written alike, wherever they stand."""
    kind = type(first)
    if kind is not type(second):
        return False
    if kind in _NODES or kind in syntax.PARTS:
        return all(
            field == "span" or is_same(one, other)
            for field, one, other in zip(first._fields, first, second, strict=True)
        )
    if kind is list:
        return len(first) == len(second) and all(map(is_same, first, second))
    return bool(first == second)


def shape(part: Any) -> Hashable:
    """Of an expression or a part of one, what is equal for those that ``is_same`` holds to be written alike."""
    kind = type(part)
    if kind in _NODES or kind in syntax.PARTS:
        fields = zip(part._fields, part, strict=True)
        return kind, tuple(shape(value) for field, value in fields if field != "span")
    return (list, tuple(map(shape, part))) if kind is list else (kind, part)


def bodies_of(node: Statement) -> list[list[Statement]]:
    """The bodies of a statement, in the order of the text."""
    if isinstance(node, (syntax.If, syntax.For, syntax.While)):
        return [node.body, node.orelse]
    if isinstance(node, (syntax.With, syntax.FunctionDef, syntax.ClassDef)):
        return [node.body]
    if isinstance(node, syntax.Try):
        return [node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody]
    return [case.body for case in node.cases] if isinstance(node, syntax.Match) else []


def last_name(node: Node) -> str:
    """``c`` of ``a.b.c`` or of a plain ``c``; empty for any other node."""
    return node.id if isinstance(node, Name) else node.attr if isinstance(node, Attribute) else ""


def dotted(node: Node) -> str | None:
    """``a.b.c`` for an expression that is a name or attributes of one."""
    parts: list[str] = []
    while isinstance(node, Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, Name) else None


def is_name(node: Node, name: str) -> bool:
    """Whether a node is just this name."""
    return isinstance(node, Name) and node.id == name


def asks_for_main(node: syntax.If) -> bool:
    """Whether a condition compares ``__name__``, as that of a main block does."""
    return isinstance(node.test, syntax.Compare) and is_name(node.test.left, "__name__")


def keywords_of(call: syntax.Call) -> dict[str | None, Expression]:
    """The arguments of a call that are given by name; under None what ``**`` spreads."""
    return {keyword.arg: keyword.value for keyword in call.keywords}


def statement_call(node: Statement) -> syntax.Call | None:
    """The call that a statement is, and nothing more; None for any other statement."""
    return node.value if isinstance(node, syntax.Expr) and isinstance(node.value, syntax.Call) else None


def words_of(nodes: Iterable[Node]) -> Iterator[str]:
    """The names in nodes, dotted where they are, those of imports and parameters, and strings of a single word."""
    for node in nodes:
        if isinstance(node, (Name, Attribute)):
            yield dotted(node) or last_name(node)
        elif isinstance(node, syntax.Constant):
            if isinstance(node.value, str) and len(node.value.split()) == 1:
                yield node.value.lstrip("-")
        elif isinstance(node, syntax.Call):
            yield from (keyword.arg for keyword in node.keywords if keyword.arg is not None)
        elif isinstance(node, syntax.FunctionDef):
            yield from (node.name, *(parameter.name for parameter in node.args.parameters))
        elif isinstance(node, (syntax.Import, syntax.ImportFrom)):
            origin = f"{node.module}." if isinstance(node, syntax.ImportFrom) else ""
            yield from (origin + alias.name for alias in node.names)
