"""Where bytes that are read lie in their file: of a script as a whole, or of one that another file holds."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from validate_ddp.findings import Span


class Segment(NamedTuple):
    """From ``start`` of the bytes that are read on, they are those of the file from ``at`` on."""

    start: int
    at: int


def starts_of_lines(data: bytes) -> list[int]:
    """Where the lines of a file begin, the first at 0; ended as ``source.text`` ends them."""
    starts = [0]
    position = 0
    while position < len(data):
        ends = [end for end in (data.find(b"\n", position), data.find(b"\r", position)) if end >= 0]
        if not ends:
            break
        position = min(ends) + 1
        if data[position - 1 : position + 1] == b"\r\n":
            position += 1
        starts.append(position)
    return starts


class Origin:
    """Bytes, and for each of their offsets its place in the file."""

    __slots__ = ("_lines", "_segments", "_starts", "data")

    def __init__(self, data: bytes, lines: list[int], segments: tuple[Segment, ...] = (Segment(0, 0),)) -> None:
        self.data = data
        self._lines = lines
        self._segments = segments
        self._starts = [segment.start for segment in segments]

    @classmethod
    def of(cls, data: bytes) -> Origin:
        """Of a whole file."""
        return cls(data, starts_of_lines(data))

    def at(self, offset: int) -> int:
        """The file's own offset of one of these bytes."""
        segment = self._segments[max(bisect_right(self._starts, offset) - 1, 0)]
        return segment.at + offset - segment.start

    def span(self, start: int, end: int) -> Span:
        """The range of these bytes as lines and columns of the file."""
        line, column = self._place(self.at(start))
        # The end belongs to the byte before it: the next segment may lie elsewhere.
        end_line, end_column = self._place(self.at(end - 1) + 1) if end > start else (line, column)
        return Span(line, column, end_line, end_column)

    def part(self, data: bytes, segments: tuple[Segment, ...]) -> Origin:
        """Of bytes made of these: ``segments`` tell where in these they lie."""
        return Origin(data, self._lines, tuple(Segment(each.start, self.at(each.at)) for each in segments))

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1]


class Spot(Origin):
    """Bytes of which only the span is known that they come from, as those of a string in Python."""

    __slots__ = ("_span",)

    def __init__(self, data: bytes, span: Span) -> None:
        super().__init__(data, [0])
        self._span = span

    def span(self, start: int, end: int) -> Span:
        return self._span

    def part(self, data: bytes, segments: tuple[Segment, ...]) -> Origin:
        return Spot(data, self._span)
