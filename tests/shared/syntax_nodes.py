"""Nodes of a text and edits on them, as tests of fixes write them down."""

from __future__ import annotations

import ast
from typing import Any

from validate_ddp.edit.apply import Applied, apply
from validate_ddp.findings import Edit, Fix, Span


def span_of(node: Any) -> Span:
    return Span(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


def nodes(text: str, kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> list[Any]:
    """The nodes of a kind, in the order of the text."""
    found: list[Any] = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kind)]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset, -node.end_lineno, -node.end_col_offset))


def fix(kind: str, node: Any, code: str, title: str = "t") -> Fix:
    """A safe fix of one edit of ``x.py``."""
    return fix_of((kind, node, code), title=title)


def fix_of(*edits: tuple[str, Any, str], title: str = "t") -> Fix:
    """A safe fix of several edits of ``x.py``: kind, node or span, and code of each."""
    return Fix(
        title,
        True,
        tuple(Edit(kind, "x.py", at if isinstance(at, Span) else span_of(at), code) for kind, at, code in edits),
    )


def edit(text: str, kind: str, node: Any, code: str) -> Applied:
    return apply(text, [fix(kind, node, code)], "x.py")


def calls_and_statements(text: str) -> list[tuple[ast.Call, Any]]:
    """Each call, with the statement, the handler or the case that it stands in."""
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            statement: Any = node
            while not isinstance(statement, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                statement = parents[statement]
            found.append((node, statement))
    return found
