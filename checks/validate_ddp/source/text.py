"""A file as text: what a source is, what a problem with one is, and what counts as a line."""

from __future__ import annotations

from typing import NamedTuple

UNREADABLE, SYNTAX = "unreadable", "syntax"
BROKEN, EMPTY, FOREIGN, NEWER, PARTIAL, REFUSED = "broken", "empty", "foreign", "newer", "partial", "refused"


class Problem(NamedTuple):
    """Why a file could not be checked. Line and column count from 1, in characters; 0 where no place can be told.

    kind: "unreadable" (no text could be had) or "syntax" (the text is not Python that this Python can parse).
    cell: number of the notebook's code cell, from 1; ``line`` then counts within it.
    cause: "broken" (the file is not what its name says), "empty" (it holds nothing), "foreign" (it is a file of
    another kind, as a launch script), "newer" (it is for a newer Python), "partial" (a cell of a notebook is left out,
    the rest is read) or "refused" (nothing is known of it: the system does not open it).
    """

    path: str
    line: int
    column: int
    message: str
    kind: str
    cell: int | None = None
    cause: str = BROKEN


class Comment(NamedTuple):
    """A comment of a file. Lines count from 1, columns from 0, in characters. own_line: nothing else is on its line."""

    line: int
    column: int
    text: str
    own_line: bool


class Cell(NamedTuple):
    """Where a code cell lies in the notebook's text.

    number: from 1, counting code cells only. first_line: line of ``text`` that holds the cell's first line, from 1.
    line_count: lines of the cell, at least 1.
    """

    number: int
    first_line: int
    line_count: int


class Source(NamedTuple):
    """A file as bytes and as the text which is handed to ``ast``.

    Lines of ``text`` are ended by ``\\n``, ``\\r\\n`` or ``\\r`` only, as for Python's tokenizer, and keep their ends:
    use ``split_lines``, not ``str.splitlines``. There is no byte order mark in ``text``.
    cells: None for a script; for a notebook, where each code cell lies in ``text``.
    """

    path: str
    data: bytes
    text: str
    cells: tuple[Cell, ...] | None = None


def locate(cells: tuple[Cell, ...], line: int) -> tuple[int, int]:
    """(number of the cell, line within it, both from 1) for a line of the notebook's text."""
    found = cells[0]
    for cell in cells:
        if cell.first_line > line:
            break
        found = cell
    return found.number, max(1, min(line - found.first_line + 1, found.line_count))


def syntax_problem(source: Source, line: int, column: int, message: str) -> Problem:
    """A syntax problem at a line of ``source.text``; in a notebook it is given as cell and line within the cell."""
    if source.cells and line > 0:
        number, within = locate(source.cells, line)
        return Problem(source.path, within, column, message, SYNTAX, number)
    return Problem(source.path, line, column, message, SYNTAX)


def split_lines(text: str) -> list[str]:
    """Lines with their ends, as the tokenizer counts them: form feeds and Unicode separators do not end a line."""
    lines = text.split("\n")
    ended = [line + "\n" for line in lines[:-1]]
    if lines[-1]:
        ended.append(lines[-1])
    if "\r" not in text:
        return ended
    return [part for line in ended for part in _split_carriage_returns(line)]


def line_of_byte(data: bytes, offset: int) -> int:
    """Number of the line, from 1, that holds the byte at ``offset``."""
    before = data[:offset]
    return before.count(b"\n") + before.count(b"\r") - before.count(b"\r\n") + 1


def _split_carriage_returns(line: str) -> list[str]:
    body, end = (line[:-2], "\r\n") if line.endswith("\r\n") else (line, "")
    parts = body.split("\r")
    ended = [part + "\r" for part in parts[:-1]]
    last = parts[-1] + end
    return [*ended, last] if last else ended
