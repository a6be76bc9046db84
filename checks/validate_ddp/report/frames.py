"""Code frames: the lines round a span, with carets under it."""

from __future__ import annotations

from validate_ddp.report.printable import cells, clip, paint

_ELLIPSIS = "..."
_LONG_SPAN = 4
"""Lines of a span that are shown whole; of a longer one only the first."""


def frame(
    lines: list[str],
    start: tuple[int, int],
    end: tuple[int, int],
    *,
    around: int,
    before: int = 0,
    gutter: int,
    width: int,
    color: bool,
    style: str,
) -> list[str]:
    """The lines of a frame round a span given by lines from 1 and character columns from 0, its end exclusive.

    lines: the file's. around: lines shown before and after. before: lines above the notebook's cell, which are not
    counted. gutter: columns for the line numbers, those of the longest one.
    """
    first, column = start
    last, end_column = max(end, start)
    if not 1 <= first <= len(lines):
        return []
    if last - first >= _LONG_SPAN or last > len(lines):
        last, end_column = first, len(lines[first - 1])
    top, bottom = max(1, first - around), min(len(lines), last + around)
    while top < first and not lines[top - 1].strip():
        top += 1
    while bottom > last and not lines[bottom - 1].strip():
        bottom -= 1
    top = max(top, before + 1)
    bar = paint("|", "frame", color)
    rendered = []
    for number in range(top, bottom + 1):
        line = lines[number - 1]
        inside = first <= number <= last
        left = column if number == first else len(line) - len(line.lstrip())
        right = end_column if number == last else len(line.rstrip())
        shown, carets = _line(line, left, right, max(width - gutter - 3, 20), inside)
        label = paint(str(number - before).rjust(gutter), "frame", color)
        rendered.append(f"{label} {bar} {shown}".rstrip())
        if inside:
            rendered.append(f"{' ' * gutter} {bar} {paint(carets, style, color)}".rstrip())
    return rendered


def _line(line: str, left: int, right: int, width: int, inside: bool) -> tuple[str, str]:
    """A source line made fit for ``width`` columns, and the carets under its characters ``[left, right)``."""
    shown = cells(line)
    left = min(max(left, 0), len(shown))
    right = min(max(right, left), len(shown)) if inside else left
    start, end = 0, len(shown)
    before = after = ""
    if sum(columns for _, columns in shown) > width:
        start, end = clip(shown, left if inside else 0, right, max(width - 2 * len(_ELLIPSIS), 1))
        before = _ELLIPSIS if start > 0 else ""
        after = _ELLIPSIS if end < len(shown) else ""
    text = before + "".join(character for character, _ in shown[start:end]) + after
    indent = min(
        len(before) + sum(columns for _, columns in shown[start:left]), width - 1
    )  # a caret behind a full line
    length = sum(columns for _, columns in shown[left : min(right, end)])
    return text, " " * indent + "^" * max(length, 1)
