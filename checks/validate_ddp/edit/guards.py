"""Puts a statement under a condition of its own."""

from __future__ import annotations

import ast
import io
import token
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from validate_ddp.edit.layout import (
    BLANK,
    REST,
    Declined,
    Plan,
    Splice,
    Text,
    line_start_of,
    new_expression,
    start_of,
    statement_at,
)
from validate_ddp.edit.tree import Slot
from validate_ddp.findings import Edit
from validate_ddp.source.positions import with_plain_ends

_STRING_START = frozenset(getattr(token, name) for name in ("FSTRING_START", "TSTRING_START") if hasattr(token, name))
_STRING_END = frozenset(getattr(token, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(token, name))
TAKES_IN = 2


def guarded(text: Text, edit: Edit) -> Plan:
    """``guard``: the statement, indented, under ``if <text>:``; comments above it stay above the condition."""
    slot = statement_at(text, edit)
    value, code = new_expression(edit.text)
    if isinstance(value, (ast.Tuple, ast.Yield, ast.YieldFrom, ast.Starred)) or "\n" in code:
        raise Declined("the new code is not a condition")
    if text.text.startswith("elif", start_of(text, slot.node)):
        raise Declined("an `elif` cannot stand alone")
    node = slot.node

    joined = _guarded_before(text, slot, code)

    def change() -> None:
        siblings = getattr(slot.parent, slot.field)
        if joined is not None:
            above = next((item for item in siblings if isinstance(item, ast.If) and joined in item.body), None)
            if above is None:
                raise Declined("the statement above is not guarded after all")
            siblings.remove(node)
            above.body.append(node)
            return
        position = next(index for index, sibling in enumerate(siblings) if sibling is node)
        siblings[position] = ast.If(test=value, body=[node], orelse=[])

    splices = tuple(_splices(text, slot, f"if {code}:", joined))
    text.conditions[id(node)] = code
    return Plan(splices, change, TAKES_IN)


def _guarded_before(text: Text, slot: Slot, code: str) -> Any:
    """The statement right above, where it goes under the same condition; else None."""
    siblings = getattr(slot.parent, slot.field)
    index = next(number for number, sibling in enumerate(siblings) if sibling is slot.node)
    above = siblings[index - 1] if index else None
    if above is None or text.conditions.get(id(above)) != code:
        return None
    between = text.text[text.offset(above.end_lineno, above.end_col_offset) : start_of(text, slot.node)]
    return above if between.strip(" \t\f") and not between.strip() else None


def _splices(text: Text, slot: Slot, header: str, joined: Any = None) -> Iterator[Splice]:
    start = start_of(text, slot.node)
    end = text.offset(slot.node.end_lineno, slot.node.end_col_offset)
    line_start = line_start_of(text, start)
    rest = REST.match(text.text, end)
    line_end = rest.end() if rest else end
    compound = hasattr(slot.node, "body") or hasattr(slot.node, "cases")
    alone = line_end == len(text.text) or text.text[line_end] in "\r\n" or (compound and text.text[line_end] == ";")
    if line_start is None or not alone:
        if compound:
            raise Declined("the statement shares its line with another")
        yield from _parted(text, slot, header)
        return
    indent = text.text[line_start:start]
    unit = _unit(text, slot, indent)
    yield Splice(start, start, unit if joined is not None else header + text.newline(start) + indent + unit)
    first = start_of(text, slot.node)
    in_strings = _lines_in_strings(text.text[first:end], indent)
    row = _row(text, first)
    for number in range(row + 1, slot.node.end_lineno):
        begin = text.starts[number]
        blank = BLANK.match(text.text, begin)
        if number - row in in_strings or (blank and text.text[blank.end() : blank.end() + 1] in ("\r", "\n", "")):
            continue
        position = begin + len(indent) if text.text.startswith(indent, begin) else begin
        yield Splice(position, position, unit)


def _row(text: Text, offset: int) -> int:
    """Index of the line that holds a character."""
    from bisect import bisect_right

    return bisect_right(text.starts, offset) - 1


def _unit(text: Text, slot: Slot, indent: str) -> str:
    """One step of indentation, as the statements round the place have it."""
    body = getattr(slot.node, "body", None)
    inner = _indentation(text, body[0]) if isinstance(body, list) and body else None
    if inner is not None and inner.startswith(indent) and inner != indent:
        return inner[len(indent) :]
    for other in text.tree.statements.values():
        if other.position != 0 or not hasattr(other.parent, "lineno"):
            continue
        outer, inner = _indentation(text, other.parent), _indentation(text, other.node)
        if outer is not None and inner is not None and inner.startswith(outer) and inner != outer:
            if not indent or indent[0] == inner[0]:
                return inner[len(outer) :]
    return "\t" if "\t" in indent else "    "


def _indentation(text: Text, node: Any) -> str | None:
    """The blanks before a statement; None where it shares its line with code before it."""
    start = text.offset(node.lineno, node.col_offset)
    line_start = line_start_of(text, start)
    return None if line_start is None else text.text[line_start:start].replace("\f", "")


def _lines_in_strings(code: str, indent: str) -> set[int]:
    """The lines of a statement, from 0, that begin inside of a string: their indentation is content."""
    head = f"if 1:\n{indent}" if indent else ""
    found: set[int] = set()
    depth, begun = 0, 0
    try:
        for item in tokenize.generate_tokens(io.StringIO(head + with_plain_ends(code) + "\n").readline):
            if item.type == tokenize.STRING and not depth:
                found.update(range(item.start[0] + 1, item.end[0] + 1))
            elif item.type in _STRING_START:
                begun = item.start[0] if not depth else begun
                depth += 1
            elif item.type in _STRING_END:
                depth -= 1
                if not depth:
                    found.update(range(begun + 1, item.end[0] + 1))
    except (tokenize.TokenError, SyntaxError) as error:
        raise Declined("the statement cannot be read") from error
    return {row - (2 if indent else 1) for row in found}


def _parted(text: Text, slot: Slot, header: str) -> Iterator[Splice]:
    """A statement that shares its line: each of them gets a line of its own."""
    siblings = getattr(slot.parent, slot.field)
    index = next(number for number, sibling in enumerate(siblings) if sibling is slot.node)
    first = last = index
    while first > 0 and siblings[first - 1].end_lineno == siblings[first].lineno:
        first -= 1
    while last + 1 < len(siblings) and siblings[last + 1].lineno == siblings[last].end_lineno:
        last += 1
    start = text.offset(siblings[first].lineno, siblings[first].col_offset)
    line_start = line_start_of(text, start)
    newline = text.newline(start)
    if line_start is not None:
        indent = text.text[line_start:start].replace("\f", "")
        unit = _unit(text, slot, indent)
    else:  # behind the colon of a header
        outer = _indentation(text, slot.parent) if hasattr(slot.parent, "lineno") else None
        colon = len(text.text[:start].rstrip(" \t"))
        if outer is None or text.text[colon - 1] != ":":
            raise Declined("the statement shares its line with another")
        unit = _unit(text, slot, outer)
        indent = outer + unit
        lead = f"{header}{newline}{indent}{unit}" if first == index else ""
        yield Splice(colon, start, newline + indent + lead)
    if line_start is not None and first == index:
        yield Splice(start, start, f"{header}{newline}{indent}{unit}")
    for one, other in pairwise(range(first, last + 1)):
        end = text.offset(siblings[one].end_lineno, siblings[one].end_col_offset)
        begin = text.offset(siblings[other].lineno, siblings[other].col_offset)
        if text.text[end:begin].strip(" \t\f") != ";":
            raise Declined("the statement shares its line with another")
        lead = f"{header}{newline}{indent}{unit}" if other == index else ""
        yield Splice(end, begin, newline + indent + lead)
