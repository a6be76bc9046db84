"""Turns a declarative edit into changes of the text, and into the change of the tree which they must amount to."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable
from typing import Any, NamedTuple

import libcst

from validate_ddp.catalogue import Edit
from validate_ddp.catalogue.positions import line_starts, offset_of, with_plain_ends
from validate_ddp.edit.tree import Slot, Tree, parse

_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)
_LOOSE = (ast.Tuple, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Starred, ast.GeneratorExp)
_BLANK = re.compile(r"[ \t\f]*")
_REST = re.compile(r"[ \t\f]*(#[^\r\n]*)?")


class Declined(Exception):
    """An edit that cannot be carried out here; the message says why, in words for the user."""


class Splice(NamedTuple):
    """Characters ``[start, end)`` of the text become ``text``."""

    start: int
    end: int
    text: str


class Plan(NamedTuple):
    """An edit carried out: on the text, and on the tree by calling ``change``."""

    splices: tuple[Splice, ...]
    change: Callable[[], None]


class Text:
    """A text to be edited: its lines and its tree."""

    __slots__ = ("starts", "text", "tree")

    def __init__(self, text: str) -> None:
        module = parse(text)
        if module is None:
            raise Declined("the file does not parse")
        self.text = text
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


def plan(text: Text, edit: Edit) -> Plan:
    """How to carry out one edit. Raises Declined where that cannot be done rightly."""
    try:
        if edit.kind in ("insert_before", "insert_after"):
            return _insertion(text, edit)
        if edit.kind == "replace":
            return _replacement(text, edit)
        if edit.kind == "add_argument":
            return _argument(text, edit)
    except (libcst.ParserSyntaxError, libcst.CSTValidationError, RecursionError) as error:
        raise Declined("the new code cannot be read") from error
    raise Declined(f"unknown kind of edit `{edit.kind}`")


def _insertion(text: Text, edit: Edit) -> Plan:
    slot = text.tree.statements.get((edit.span.line, edit.span.column))
    if slot is None or not isinstance(getattr(slot.parent, slot.field), list):
        raise Declined("there is no statement at the place")
    start = _start(text, slot.node)
    if text.text.startswith("elif", start):
        raise Declined("nothing can stand before an `elif`")
    before = edit.kind == "insert_before"
    splice = _before(text, slot, start, edit.text) if before else _after(text, slot, start, edit.text)
    new = parse(edit.text)

    def change() -> None:
        siblings = getattr(slot.parent, slot.field)
        position = next(index for index, sibling in enumerate(siblings) if sibling is slot.node)
        position += 0 if before else 1
        siblings[position:position] = new.body if new else []

    return Plan((splice,), change)


def _start(text: Text, node: Any) -> int:
    """Index of a statement's first character, decorators included."""
    decorators = getattr(node, "decorator_list", ())
    if not decorators:
        return text.offset(node.lineno, node.col_offset)
    line_start = text.starts[decorators[0].lineno - 1]
    blank = _BLANK.match(text.text, line_start)
    start = blank.end() if blank else line_start
    if not text.text.startswith("@", start):
        raise Declined("the decorator is laid out in an unusual way")
    return start


def _line_start(text: Text, offset: int) -> int | None:
    """Index at which a statement's line starts; None where it shares its line with code before it."""
    start = max(text.text.rfind("\n", 0, offset), text.text.rfind("\r", 0, offset)) + 1
    if text.text[start:offset].strip(" \t\f"):
        return None
    above = text.text[_line_start_above(text, start) : start].rstrip("\r\n") if start else ""
    return None if above.endswith("\\") and not above.lstrip().startswith("#") else start


def _before(text: Text, slot: Slot, start: int, code: str) -> Splice:
    line_start = _line_start(text, start)
    if line_start is None:
        return Splice(start, start, _inline(code) + "; ")
    indent = text.text[line_start:start]
    # Above the comments on the statement, which would else be torn from it (a suppression among them).
    while line_start > 0:
        above = _line_start_above(text, line_start)
        if not text.text.startswith(indent + "#", above):
            break
        line_start = above
    newline = text.newline(start)
    lines = _lines(code, indent, newline)
    return Splice(line_start, line_start, "".join(line + newline for line in lines))


def _line_start_above(text: Text, line_start: int) -> int:
    end = line_start - 1
    if text.text.startswith("\r\n", end - 1):
        end -= 1
    return max(text.text.rfind("\n", 0, end), text.text.rfind("\r", 0, end)) + 1


def _after(text: Text, slot: Slot, start: int, code: str) -> Splice:
    end = text.offset(slot.node.end_lineno, slot.node.end_col_offset)
    rest = _REST.match(text.text, end)
    line_end = rest.end() if rest else end
    alone = line_end == len(text.text) or text.text[line_end] in "\r\n"
    line_start = _line_start(text, start)
    compound = hasattr(slot.node, "body") or hasattr(slot.node, "cases")
    if compound and not alone and text.text[line_end] == ";":
        line_end = text.line_end(line_end)  # `if x: y;` ends with its line
        alone = True
    if line_start is None or not alone:
        if compound:
            raise Declined("the statement shares its line with another")
        return Splice(end, end, "; " + _inline(code))
    indent = text.text[line_start:start]
    newline = text.newline(end)
    lines = _lines(code, indent, newline)
    if line_end == len(text.text):
        return Splice(line_end, line_end, "".join(newline + line for line in lines))
    position = text.after_newline(line_end)
    return Splice(position, position, "".join(line + newline for line in lines))


def _lines(code: str, indent: str, newline: str) -> list[str]:
    """The lines of new statements, rendered by LibCST in the layout of the place."""
    module = libcst.parse_module(code.strip() + "\n")
    module = module.with_changes(default_indent="\t" if "\t" in indent else "    ", default_newline="\n")
    rendered = module.code.rstrip("\n").split("\n")
    return [indent + line if line else line for line in rendered]


def _inline(code: str) -> str:
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


def _expression(text: Text, edit: Edit) -> Slot:
    slot = text.tree.expressions.get((*edit.span,))
    if slot is None:
        raise Declined("the expression is not at its place, or within an f-string")
    return slot


def _replacement(text: Text, edit: Edit) -> Plan:
    slot = _expression(text, edit)
    new = parse(f"(\n{edit.text}\n)")
    if new is None or len(new.body) != 1 or not isinstance(new.body[0], ast.Expr):
        raise Declined("the new code is not one expression")
    value = new.body[0].value
    code = libcst.Module([]).code_for_node(libcst.parse_expression(edit.text.strip()))
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


def _argument(text: Text, edit: Edit) -> Plan:
    slot = _expression(text, edit)
    call = slot.node
    new = libcst.parse_expression(f"f({edit.text.strip()})")
    parsed = parse(f"f({edit.text.strip()})")
    if not isinstance(call, ast.Call) or parsed is None or not isinstance(new, libcst.Call) or len(new.args) != 1:
        raise Declined("there is no call at the place, or the new code is not one argument")
    argument = new.args[0]
    if argument.keyword is None:
        raise Declined("the new argument has no name")
    if any(keyword.arg == argument.keyword.value for keyword in call.keywords):
        raise Declined(f"the call has an argument `{argument.keyword.value}`")
    code = libcst.Module([]).code_for_node(argument)
    keyword = parsed.body[0].value.keywords[0]  # type: ignore[attr-defined]

    def change() -> None:
        call.keywords.append(keyword)

    return Plan(_argument_splices(text, call, edit, code), change)


def _argument_splices(text: Text, call: ast.Call, edit: Edit, code: str) -> tuple[Splice, ...]:
    """Where the new last argument goes: in the line, or on a line of its own where the last one has one."""
    start = text.offset(edit.span.line, edit.span.column)
    close = text.offset(edit.span.end_line, edit.span.end_column) - 1
    last, token = _last_token(text.text[start : close + 1])
    last += start
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not arguments:
        return (Splice(last, last, code),)
    comma = "" if token == "," else ","
    value = max(arguments, key=lambda node: (node.lineno, node.col_offset))
    line_start = text.starts[value.lineno - 1]
    own_line = line_start > start and re.search(r"[\r\n]", text.text[last:close]) is not None
    if not own_line:
        return (Splice(last, last, f"{comma} {code}"),)
    blank = _BLANK.match(text.text, line_start)
    indent = blank.group() if blank else ""
    line_end = text.line_end(last)
    added = Splice(line_end, line_end, text.newline(last) + indent + code + ("" if comma else ","))
    if not comma:
        return (added,)
    if line_end == last:
        return (added._replace(text=comma + added.text),)
    return (Splice(last, last, comma), added)


def _last_token(call: str) -> tuple[int, str]:
    """End of the last token before a call's closing bracket, as an index in its text, and the token."""
    code = with_plain_ends(call)
    starts = line_starts(code)
    end, string, previous = 0, "", (0, "")
    try:
        # In brackets of its own, no line of the call can look like a statement or an indentation.
        for item in tokenize.generate_tokens(io.StringIO(f"({code})").readline):
            if item.type in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER):
                continue
            previous = (end, string)
            row, column = item.end
            end = starts[row - 1] + column - (1 if row == 1 else 0)
            string = item.string
            if item.string == ")" and end == len(code):
                return previous
    except (tokenize.TokenError, SyntaxError) as error:
        raise Declined("the call cannot be read") from error
    raise Declined("the call cannot be read")
