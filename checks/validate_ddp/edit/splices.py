"""Turns a declarative edit into changes of the text, and into the change of the tree which they must amount to."""

from __future__ import annotations

import ast

import libcst

from validate_ddp.edit.arguments import added, removed, renamed, replaced
from validate_ddp.edit.guards import guarded
from validate_ddp.edit.imports import imported
from validate_ddp.edit.insertion import insertion
from validate_ddp.edit.layout import Declined, Plan, Splice, Text, expression_at, new_expression
from validate_ddp.findings import Edit

_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)
_LOOSE = (ast.Tuple, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Starred, ast.GeneratorExp)


def plan(text: Text, edit: Edit) -> Plan:
    """How to carry out one edit. Raises Declined where that cannot be done rightly."""
    try:
        kind = _KINDS.get(edit.kind)
        if kind is not None:
            return kind(text, edit)
    except (libcst.ParserSyntaxError, libcst.CSTValidationError, RecursionError) as error:
        raise Declined("the new code cannot be read") from error
    raise Declined(f"unknown kind of edit `{edit.kind}`")


def _replacement(text: Text, edit: Edit) -> Plan:
    slot = expression_at(text, edit)
    value, code = new_expression(edit.text)
    free = isinstance(slot.parent, (ast.keyword, ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)) or (
        isinstance(slot.parent, ast.Call) and slot.field == "args"
    )
    if isinstance(value, _LOOSE) or not (free or isinstance(value, (*_ATOMS, ast.Constant))) or "\n" in code:
        code = f"({code})"
    start = text.offset(edit.span.line, edit.span.column)
    end = text.offset(edit.span.end_line, edit.span.end_column)

    def change() -> None:
        if slot.position is None:
            setattr(slot.parent, slot.field, value)
        else:
            getattr(slot.parent, slot.field)[slot.position] = value

    return Plan((Splice(start, end, code),), change)


_KINDS = {
    "insert_before": insertion,
    "insert_after": insertion,
    "append": insertion,
    "replace": _replacement,
    "guard": guarded,
    "add_argument": added,
    "remove_argument": removed,
    "replace_argument": replaced,
    "rename_in_arguments": renamed,
    "add_import": imported,
}
