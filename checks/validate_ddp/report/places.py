"""Where a span lies, in the words that reports use: characters from 1, and cells in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from validate_ddp.findings import Finding, Span
from validate_ddp.source.positions import character_column, lines_of

if TYPE_CHECKING:
    from validate_ddp.lint import Outcome


class Location(NamedTuple):
    """Lines and columns from 1, in characters, end exclusive; in a notebook the lines count within the cell."""

    cell: int | None
    line: int
    column: int
    end_line: int
    end_column: int


class Files:
    """The texts of the files that a report quotes, split into lines once a file."""

    __slots__ = ("_cells", "_lines", "_texts")

    def __init__(self, outcome: Outcome) -> None:
        self._texts: Callable[[str], str | None] = outcome.texts
        self._lines: dict[str, list[str]] = {}
        self._cells: dict[str, tuple[tuple[int, int, int], ...]] = {}

    def lines(self, path: str) -> list[str]:
        """The file's lines; none where its text is not at hand."""
        if path not in self._lines:
            text = self._texts(path)
            self._lines[path] = [] if text is None else lines_of(text)
        return self._lines[path]

    def cells(self, path: str) -> tuple[tuple[int, int, int], ...]:
        """Number, first line and count of lines of each code cell; none where the file is no notebook.

        A notebook's text holds a comment line above each cell, ``<mark>1``, ``<mark>2``, ...; see ``source.notebooks``.
        """
        if path not in self._cells:
            lines = self.lines(path) if path.endswith(".ipynb") else []
            mark = lines[0][:-1] if lines and lines[0].startswith("# %%") and lines[0].endswith("1") else None
            starts = [number for number, line in enumerate(lines, 1) if mark and _is_mark(line, mark)]
            ends = [*starts[1:], len(lines) + 1] if starts else []
            self._cells[path] = tuple(
                (number, start + 1, end - start - 1)
                for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
            )
        return self._cells[path]

    def bounds(self, path: str, cell: int | None) -> tuple[int, int]:
        """The lines of the file's text above a cell, and its last line; of a script 0 and the last line."""
        for number, first, count in self.cells(path) if cell is not None else ():
            if number == cell:
                return first - 1, first + count - 1
        return 0, len(self.lines(path))

    def locate(self, path: str, span: Span) -> Location:
        """A parser's span as people count it."""
        lines = self.lines(path)
        columns = []
        for line, column in ((span.line, span.column), (span.end_line, span.end_column)):
            columns.append(character_column(lines[line - 1], column) if 1 <= line <= len(lines) else max(column, 0))
        cell, first = None, 1
        for number, start, count in self.cells(path):
            if start <= span.line < start + count:
                cell, first = number, start
        return Location(cell, span.line - first + 1, columns[0] + 1, span.end_line - first + 1, columns[1] + 1)


def _is_mark(line: str, mark: str) -> bool:
    return line.startswith(mark) and line[len(mark) :].isdigit()


def location(finding: Finding) -> Location:
    """Where a finding lies."""
    return Location(finding.cell, finding.line, finding.column, finding.end_line, finding.end_column)


def shown(path: str, place: Location) -> str:
    """``path:line:column``, with the cell in a notebook: ``path:cell 2:line:column``."""
    cell = "" if place.cell is None else f"cell {place.cell}:"
    return f"{path}:{cell}{place.line}:{place.column}"
