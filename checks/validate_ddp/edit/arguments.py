"""Adds an argument to a call, and takes one away."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import Any, NamedTuple

import libcst

from validate_ddp.edit.layout import BLANK, REST, Declined, Plan, Splice, Text, expression_at, new_expression
from validate_ddp.edit.tree import parse
from validate_ddp.findings import Edit
from validate_ddp.source.positions import line_starts, with_plain_ends


def added(text: Text, edit: Edit) -> Plan:
    """``add_argument``: the last one of a call."""
    slot = expression_at(text, edit)
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
    blank = BLANK.match(text.text, line_start)
    indent = blank.group() if blank else ""
    line_end = text.line_end(last)
    added = Splice(line_end, line_end, text.newline(last) + indent + code + ("" if comma else ","))
    if not comma:
        return (added,)
    if line_end == last:
        return (added._replace(text=comma + added.text),)
    return (Splice(last, last, comma), added)


class _Token(NamedTuple):
    """A token of a call: its place in the call's text."""

    start: int
    end: int
    string: str


def _last_token(call: str) -> tuple[int, str]:
    """End of the last token before a call's closing bracket, as an index in its text, and the token."""
    last = _tokens(call)[-2]
    return last.end, last.string


def _tokens(call: str) -> list[_Token]:
    """The tokens of a call, up to its closing bracket, without comments and line ends."""
    code = with_plain_ends(call)
    starts = line_starts(code)
    found: list[_Token] = []
    try:
        # In brackets of its own, no line of the call can look like a statement or an indentation.
        for item in tokenize.generate_tokens(io.StringIO(f"({code})").readline):
            if item.type in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER):
                continue
            start, end = (starts[row - 1] + column - (row == 1) for row, column in (item.start, item.end))
            found.append(_Token(start, end, item.string))
            if item.string == ")" and end == len(code):
                return found[1:]
    except (tokenize.TokenError, SyntaxError) as error:
        raise Declined("the call cannot be read") from error
    raise Declined("the call cannot be read")


def removed(text: Text, edit: Edit) -> Plan:
    """``remove_argument``: the keyword argument of that name, with its comma."""
    call = expression_at(text, edit).node
    name = edit.text.strip()
    keyword = next((item for item in getattr(call, "keywords", ()) if item.arg == name), None)
    if not isinstance(call, ast.Call) or keyword is None:
        raise Declined(f"there is no call with an argument `{name}` at the place")
    first = text.offset(edit.span.line, edit.span.column)
    last = text.offset(edit.span.end_line, edit.span.end_column)
    start = text.offset(keyword.lineno, keyword.col_offset)
    value_end = text.offset(keyword.value.end_lineno, keyword.value.end_col_offset)
    tokens = [_Token(start_ + first, end + first, string) for start_, end, string in _tokens(text.text[first:last])]
    before = next(item for item in reversed(tokens) if item.end <= start)
    after = next(item for item in tokens if (item.start >= value_end and item.string != ")") or item.end == last)
    kept = call.keywords

    def change() -> None:
        kept.remove(keyword)

    return Plan((_cut(text, before, after, start, max(value_end, _closed(tokens, after))),), change)


def _closed(tokens: list[_Token], after: _Token) -> int:
    """End of what stands before a token: the value, with the brackets round it."""
    return max((item.end for item in tokens if item.end <= after.start), default=0)


def _cut(text: Text, before: _Token, after: _Token, start: int, end: int) -> Splice:
    """What goes, of the argument ``[start, end)`` between two tokens: its lines where it has some of its own."""
    comma = after.string == ","
    end = after.end if comma else end
    line_start = text.text.rfind("\n", 0, start) + 1
    line_start = max(line_start, text.text.rfind("\r", 0, start) + 1)
    rest = REST.match(text.text, end)
    line_end = rest.end() if rest else end
    if not text.text[line_start:start].strip() and line_start > before.start and text.text[line_end] in "\r\n":
        return Splice(line_start, text.after_newline(line_end), "")
    blank = BLANK.match(text.text, end)
    follows = blank.end() if blank else end
    if comma and text.text[follows] not in "\r\n#":
        return Splice(start, follows, "")
    between = text.text[before.end : start]
    if before.string == "," and not between.strip() and not comma:
        return Splice(before.start, end, "")
    while text.text[start - 1] in " \t" and start > before.end:
        start -= 1
    return Splice(start, end, "")


def replaced(text: Text, edit: Edit) -> Plan:
    """``replace_argument``: one keyword argument takes the place of another."""
    call = expression_at(text, edit).node
    pair: Any = parse(f"f({edit.text.strip()})")
    pair = pair.body[0].value if pair is not None and isinstance(pair.body[0], ast.Expr) else None
    if not isinstance(pair, ast.Call) or [len(pair.args), len(pair.keywords)] != [1, 1]:
        raise Declined("the new code is not a name and an argument")
    name, new = ast.unparse(pair.args[0]), pair.keywords[0]
    old = next((item for item in getattr(call, "keywords", ()) if item.arg == name), None)
    if not isinstance(call, ast.Call) or old is None:
        raise Declined(f"there is no call with an argument `{name}` at the place")
    if new.arg is None or any(item is not old and item.arg == new.arg for item in call.keywords):
        raise Declined(f"the call has an argument `{new.arg}`")
    start = text.offset(old.lineno, old.col_offset)
    end = text.offset(old.value.end_lineno or 0, old.value.end_col_offset or 0)
    first = text.offset(*edit.span[:2])
    tokens = _tokens(text.text[first : text.offset(*edit.span[2:])])
    separator = _separator(tokens, end - first)
    end = first + max(item.end for item in tokens if item.end <= separator)
    rendered = libcst.parse_expression(f"f({edit.text.strip()})")
    assert isinstance(rendered, libcst.Call)
    code = libcst.Module([]).code_for_node(rendered.args[1].with_changes(comma=libcst.MaybeSentinel.DEFAULT))

    def change() -> None:
        old.arg, old.value = new.arg, new.value

    return Plan((Splice(start, end, code),), change)


def _separator(tokens: list[_Token], end: int) -> int:
    """Where the comma or the last bracket begins that ends an argument whose value ends at ``end``."""
    return next(item.start for item in tokens if item.start >= end and (item.string == "," or item is tokens[-1]))


def renamed(text: Text, edit: Edit) -> Plan:
    """``rename_in_arguments``: each use of one name in the arguments of a call becomes another expression."""
    call = expression_at(text, edit).node
    old, _, code = edit.text.partition(",")
    value, code = new_expression(code)
    if not isinstance(call, ast.Call) or not isinstance(value, (ast.Name, ast.Attribute, ast.Call)):
        raise Declined("there is no call at the place, or the new code is not a name or a call")
    found = list(_uses(call, old.strip()))
    if not found:
        raise Declined(f"`{old.strip()}` is not an argument of the call")
    splices = [
        Splice(text.offset(node.lineno, node.col_offset), text.offset(node.end_lineno, node.end_col_offset), code)
        for _, _, _, node in found
    ]

    def change() -> None:
        for parent, field, index, _ in found:
            if index is None:
                setattr(parent, field, value)
            else:
                getattr(parent, field)[index] = value

    return Plan(tuple(splices), change)


def _uses(call: ast.Call, name: str) -> Iterator[tuple[ast.AST, str, int | None, Any]]:
    """Where a name, with dots or without, hangs in the arguments of a call: parent, field, index and node."""
    todo: list[ast.AST] = [call]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.JoinedStr, ast.Lambda)):
            continue
        for field, held in ast.iter_fields(node):
            if node is call and field == "func":
                continue
            for index, child in enumerate(held) if isinstance(held, list) else [(None, held)]:
                if isinstance(child, (ast.Name, ast.Attribute)) and ast.unparse(child) == name:
                    yield node, field, index, child
                elif isinstance(child, ast.AST):
                    todo.append(child)
