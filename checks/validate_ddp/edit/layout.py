"""A text to be edited: its lines and line ends, where its statements start, and new code laid out as it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import libcst

from validate_ddp.edit.tree import Slot, Tree, parse
from validate_ddp.findings import Edit
from validate_ddp.source.positions import line_starts, offset_of

BLANK = re.compile(r"[ \t\f]*")
REST = re.compile(r"[ \t\f]*(#[^\r\n]*)?")


class Declined(Exception):
    """An edit that cannot be carried out here; the message says why, in words for the user."""


class Splice(NamedTuple):
    """Characters ``[start, end)`` of the text become ``text``; of two at one place the lower ``order`` comes first."""

    start: int
    end: int
    text: str
    order: int = 1


class Plan(NamedTuple):
    """An edit carried out: on the text, and on the tree by calling ``change``.

    phase: the trees of several edits change in this order: statements that take others in come last.
    """

    splices: tuple[Splice, ...]
    change: Callable[[], None]
    phase: int = 0


class Text:
    """A text to be edited: its lines and its tree.

    first_line: the first line that needs what is imported. conditions: those of the guards so far, by statement.
    """

    __slots__ = ("conditions", "first_line", "starts", "text", "tree")

    def __init__(self, text: str, first_line: int | None = None) -> None:
        module = parse(text)
        if module is None:
            raise Declined("the file does not parse")
        self.text = text
        self.first_line = first_line
        self.conditions: dict[int, str] = {}
        self.starts = line_starts(text)
        self.tree = Tree(module)

    def offset(self, line: int, column: int) -> int:
        """Index of a parser's position."""
        return offset_of(self.text, self.starts, line, column)

    def line_end(self, offset: int) -> int:
        """Index of the end of the line's characters, before what ends the line."""
        found = re.compile(r"[\r\n]").search(self.text, offset)
        return found.start() if found else len(self.text)

    def newline(self, offset: int) -> str:
        """What ends the lines round an index: the line's own end, else that of the first line."""
        for end in (self.line_end(offset), self.line_end(0)):
            if self.text.startswith("\r\n", end):
                return "\r\n"
            if end < len(self.text):
                return self.text[end]
        return "\n"

    def after_newline(self, offset: int) -> int:
        """Index of the next line's start, for the index of a line's end."""
        return offset + (2 if self.text.startswith("\r\n", offset) else 1)


def start_of(text: Text, node: Any) -> int:
    """Index of a statement's first character, decorators included."""
    decorators = getattr(node, "decorator_list", ())
    if not decorators:
        return text.offset(node.lineno, node.col_offset)
    line_start = text.starts[decorators[0].lineno - 1]
    blank = BLANK.match(text.text, line_start)
    start = blank.end() if blank else line_start
    if not text.text.startswith("@", start):
        raise Declined("the decorator is laid out in an unusual way")
    return start


def line_start_of(text: Text, offset: int) -> int | None:
    """Index at which a statement's line starts; None where it shares its line with code before it."""
    start = max(text.text.rfind("\n", 0, offset), text.text.rfind("\r", 0, offset)) + 1
    if text.text[start:offset].strip(" \t\f"):
        return None
    above = text.text[line_start_above(text, start) : start].rstrip("\r\n") if start else ""
    return None if above.endswith("\\") and not above.lstrip().startswith("#") else start


def line_start_above(text: Text, line_start: int) -> int:
    """Index at which the line above starts."""
    end = line_start - 1
    if text.text.startswith("\r\n", end - 1):
        end -= 1
    return max(text.text.rfind("\n", 0, end), text.text.rfind("\r", 0, end)) + 1


def rendered_lines(code: str, indent: str, newline: str) -> list[str]:
    """The lines of new statements, rendered by LibCST in the layout of the place."""
    module = libcst.parse_module(code.strip() + "\n")
    module = module.with_changes(default_indent="\t" if "\t" in indent else "    ", default_newline="\n")
    rendered = module.code.rstrip("\n").split("\n")
    return [indent + line if line else line for line in rendered]


def rendered_inline(code: str) -> str:
    """New statements for a line which they share: simple ones only."""
    module = libcst.parse_module(code.strip() + "\n")
    if len(module.body) != 1 or not isinstance(module.body[0], libcst.SimpleStatementLine):
        raise Declined("the statement shares its line with another, and the new one needs lines of its own")
    line = module.body[0]
    rendered = module.code_for_node(
        line.with_changes(leading_lines=(), trailing_whitespace=libcst.TrailingWhitespace())
    )
    rendered = rendered.strip().rstrip(";")
    if "\n" in rendered or "\r" in rendered:
        raise Declined("the statement shares its line with another, and the new one needs lines of its own")
    return rendered


def statement_at(text: Text, edit: Edit) -> Slot:
    """The statement that starts where an edit's span does."""
    slot = text.tree.statements.get((edit.span.line, edit.span.column))
    if slot is None or not isinstance(getattr(slot.parent, slot.field), list):
        raise Declined("there is no statement at the place")
    return slot


def expression_at(text: Text, edit: Edit) -> Slot:
    """The expression that an edit's span is."""
    slot = text.tree.expressions.get((*edit.span,))
    if slot is None:
        raise Declined("the expression is not at its place, or within an f-string")
    return slot


def new_expression(code: str) -> tuple[Any, str]:
    """An expression as a tree, and as LibCST renders it."""
    new = parse(f"(\n{code}\n)")
    if new is None or len(new.body) != 1 or not isinstance(new.body[0], ast.Expr):
        raise Declined("the new code is not one expression")
    return new.body[0].value, libcst.Module([]).code_for_node(libcst.parse_expression(code.strip()))
