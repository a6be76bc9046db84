"""A syntax tree that knows where its statements and expressions stand, and that an edit can change."""

from __future__ import annotations

import ast
import warnings
from typing import Any, NamedTuple


class Slot(NamedTuple):
    """Where a node hangs: in ``field`` of ``parent``, at ``position`` where the field is a list, else None."""

    node: Any
    parent: ast.AST
    field: str
    position: int | None


def parse(text: str) -> ast.Module | None:
    """The tree, or None for text that Python's parser refuses; nothing is printed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


class Tree:
    """The tree of one text, with its statements by start, and its expressions by span."""

    __slots__ = ("expressions", "module", "statements", "strings")

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        self.statements: dict[tuple[int, int], Slot] = {}
        self.expressions: dict[tuple[int, int, int, int], Slot] = {}
        self.strings: list[tuple[int, int, int, int]] = []
        todo: list[ast.AST] = [module]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.JoinedStr):
                # Columns in f-strings are not to be relied on before Python 3.12, and quotes could clash.
                self.strings.append(_span(node))
                continue
            for field, value in ast.iter_fields(node):
                for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                    if isinstance(child, ast.AST):
                        todo.append(child)
                        self._enter(Slot(child, node, field, index))

    def _enter(self, slot: Slot) -> None:
        node = slot.node
        if isinstance(node, ast.stmt):
            self.statements.setdefault((node.lineno, node.col_offset), slot)
        elif isinstance(node, ast.expr):
            self.expressions.setdefault(_span(node), slot)


def _span(node: Any) -> tuple[int, int, int, int]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def same(left: ast.AST, right: ast.AST) -> bool:
    """Whether two trees mean the same, wherever their nodes stand. Iterative: deep trees are compared too."""
    todo: list[tuple[Any, Any]] = [(left, right)]
    while todo:
        one, other = todo.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, ast.AST):
            todo.extend((getattr(one, field, None), getattr(other, field, None)) for field in one._fields)
        elif isinstance(one, list):
            if len(one) != len(other):
                return False
            todo.extend(zip(one, other, strict=True))
        elif one != other and repr(one) != repr(other):
            return False
    return True
