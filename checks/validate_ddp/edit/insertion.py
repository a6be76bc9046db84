"""Puts statements before, after and at the end of others."""

from __future__ import annotations

import ast
from typing import Any

from validate_ddp.edit.layout import (
    REST,
    Declined,
    Plan,
    Splice,
    Text,
    line_start_above,
    line_start_of,
    rendered_inline,
    rendered_lines,
    start_of,
    statement_at,
)
from validate_ddp.edit.tree import Slot, parse
from validate_ddp.findings import Edit


def insertion(text: Text, edit: Edit) -> Plan:
    """``insert_before``, ``insert_after`` and ``append``."""
    slot = statement_at(text, edit)
    if edit.kind == "append":
        siblings = getattr(slot.parent, slot.field)
        slot = Slot(siblings[-1], slot.parent, slot.field, len(siblings) - 1)
        if isinstance(slot.node, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
            raise Declined("nothing is reached behind the last statement")
    start = start_of(text, slot.node)
    if text.text.startswith("elif", start):
        raise Declined("nothing can stand before an `elif`")
    before = edit.kind == "insert_before"
    splice = before_statement(text, start, edit.text) if before else after_statement(text, slot.node, start, edit.text)
    new = parse(edit.text)

    def change() -> None:
        siblings = getattr(slot.parent, slot.field)
        position = next(index for index, sibling in enumerate(siblings) if sibling is slot.node)
        position += 0 if before else 1
        siblings[position:position] = new.body if new else []

    return Plan((splice,), change)


def before_statement(text: Text, start: int, code: str) -> Splice:
    """New code before the statement that starts at ``start``."""
    line_start = line_start_of(text, start)
    if line_start is None:
        return Splice(start, start, rendered_inline(code) + "; ")
    indent = text.text[line_start:start]
    # Above the comments on the statement, which would else be torn from it (a suppression among them).
    while line_start > 0:
        above = line_start_above(text, line_start)
        if not text.text.startswith(indent + "#", above):
            break
        line_start = above
    newline = text.newline(start)
    lines = rendered_lines(code, indent, newline)
    return Splice(line_start, line_start, "".join(line + newline for line in lines))


def after_statement(text: Text, node: Any, start: int, code: str) -> Splice:
    """New code after a statement, which starts at ``start``."""
    end = text.offset(node.end_lineno, node.end_col_offset)
    rest = REST.match(text.text, end)
    line_end = rest.end() if rest else end
    alone = line_end == len(text.text) or text.text[line_end] in "\r\n"
    line_start = line_start_of(text, start)
    compound = hasattr(node, "body") or hasattr(node, "cases")
    if compound and not alone and text.text[line_end] == ";":
        line_end = text.line_end(line_end)  # `if x: y;` ends with its line
        alone = True
    if line_start is None or not alone:
        if compound:
            raise Declined("the statement shares its line with another")
        return Splice(end, end, "; " + rendered_inline(code))
    indent = text.text[line_start:start]
    newline = text.newline(end)
    lines = rendered_lines(code, indent, newline)
    if line_end == len(text.text):
        return Splice(line_end, line_end, "".join(newline + line for line in lines))
    position = text.after_newline(line_end)
    return Splice(position, position, "".join(line + newline for line in lines))
