"""Cuts the statement round a span out of a file, as a piece of code that stands on its own."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

from validate_ddp.edit.nesting import SIZE
from validate_ddp.findings import Span
from validate_ddp.source.positions import line_starts, offset_of, with_plain_ends

_COMPOUND = re.compile(r"(?:if|elif|else|for|while|with|try|except|finally|def|class|async|match|case)\b|@", re.ASCII)

_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


class Piece(NamedTuple):
    r"""Code which parses alone, and where the span that was asked for lies in it, in UTF-8 bytes from its start.

    Line ends are ``\n``. What is round the statement may be made up.
    """

    code: str
    start: int
    end: int


def cut(text: str, starts: list[int], statement: Span, span: Span) -> Iterator[Piece]:
    """Readings of the statement as code, the likeliest first; the caller takes the first one that parses.

    statement: the statement, or the header of a compound one, in part or whole. It is widened where ``span``
    lies outside, as a decorator does. Nothing is cut where the spans do not lie in the text.
    """
    first = min((statement.line, statement.column), (span.line, span.column))
    last = max((statement.end_line, statement.end_column), (span.end_line, span.end_column), statement[:2])
    begin, end = offset_of(text, starts, *first), offset_of(text, starts, *last)
    if begin >= end:
        return
    if first < (statement.line, statement.column):
        begin = _decorator(text, starts, first[0], begin)
    inside = [offset_of(text, starts, *where) for where in (span[:2], span[2:])]
    if _COMPOUND.match(text, begin):
        whole = inside[0] <= begin  # the span is the statement itself, which may go on below its header
        end = _header_end(text, begin, begin if whole else inside[1]) or end
    core = text[begin:end]
    inside = [min(index, end) - begin for index in inside]
    indent = text[text.rfind("\n", 0, begin) + 1 : begin].rpartition("\r")[2]
    # Lines after the first keep their indentation: within brackets it does not matter, and below a decorator it is
    # that of the decorator, so the piece gets a block of that indentation round it.
    if not core.startswith("@") or indent.strip(" \t\f"):
        indent = ""
    for before, dropped, after in _surroundings(core, indent):
        start, stop = (len(_unix(before + core[dropped:index]).encode("utf-8", "surrogatepass")) for index in inside)
        yield Piece(_unix(before + core[dropped:] + after), start, stop)


def _unix(code: str) -> str:
    """Neither ``tokenize`` nor LibCST reads a lone carriage return as Python's parser does."""
    return code.replace("\r\n", "\n").replace("\r", "\n") if "\r" in code else code


def _decorator(text: str, starts: list[int], line: int, begin: int) -> int:
    """Where the decorator starts which holds the character at ``begin``, on ``line`` or a few lines above it."""
    for number in range(line, max(line - 40, 0), -1):
        row = text[starts[number - 1] : begin]
        if row.lstrip(" \t\f").startswith("@"):
            return starts[number - 1] + row.index("@")
    return begin


def _header_end(text: str, begin: int, least: int) -> int | None:
    """Index behind the colon which ends the header of the compound statement at ``begin``, from ``least`` on.

    None where the statement is none: ``match`` and ``case`` may be names.
    """
    rest = with_plain_ends(text[begin : begin + SIZE])
    starts = line_starts(rest)
    depth = lambdas = 0
    try:
        for item in tokenize.generate_tokens(io.StringIO(rest).readline):
            if item.string in _OPENING and item.type == tokenize.OP:
                depth += 1
            elif item.string in _CLOSING and item.type == tokenize.OP:
                depth -= 1
            elif depth:
                continue
            elif item.type == tokenize.NEWLINE and not rest.startswith("@"):
                return None
            elif item.string == "lambda":
                lambdas += 1
            elif item.string == ":" and lambdas:
                lambdas -= 1
            elif item.string == ":":
                end = begin + starts[item.end[0] - 1] + item.end[1]
                if end >= least:
                    return end
    except (tokenize.TokenError, SyntaxError):
        return None
    return None


def _surroundings(core: str, indent: str) -> Iterator[tuple[str, int, str]]:
    """What to put before the code, how many of its characters to drop, and what to put after it."""
    before = f"if 1:\n{indent}" if indent else ""
    compound = _COMPOUND.match(core)
    if not compound or not core.endswith(":"):
        yield before, 0, "\n"
    if not compound:
        return
    word = compound.group()
    dropped = 0
    if word == "elif":
        dropped = 2
    elif word in ("else", "finally", "except"):
        before, indent = f"try: pass\n{'except: pass' if word == 'else' else ''}\n", ""
    elif word == "case":
        before, indent = "match _:\n ", " "
    body = "case _: pass" if word == "match" else "pass"
    ending = f"{indent}finally: pass\n" if word == "try" else ""
    yield before, dropped, f"\n{indent} {body}\n{ending}"
