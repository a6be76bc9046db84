"""Text of strangers made fit for a terminal: control characters escaped, widths counted, colour added."""

from __future__ import annotations

TAB = 4
_STYLES = {
    "error": "1;31",
    "warning": "1;33",
    "info": "1;36",
    "bold": "1",
    "dim": "2",
    "frame": "1;34",
    "good": "1;32",
}


def paint(text: str, style: str, color: bool) -> str:
    """``text`` in a style, when ``color`` is on."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if color and text else text


def escape(text: str) -> str:
    r"""``text`` on one line with everything unprintable written as an escape, as ``\x1b`` or ``\u202e``.

    What is escaped: control characters, line ends, bidirectional overrides, invisible separators, lone surrogates. So
    no source file can move the cursor, recolour, reorder or forge a line of the report.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def plain_rows(data: bytes) -> str:
    """The lines of a file, or of a diff, as a terminal may have them; for what is to be read by a program they are
    bytes."""
    rows = data.decode("utf-8", "backslashreplace").split("\n")
    return "\n".join("".join(shown for shown, _ in cells(row.removesuffix("\r"))) for row in rows)


def named(place: str) -> str:
    """A file's name, or a place in it, fit for the start of a line: there ``::error::`` is a command to GitHub Actions,
    also after spaces."""
    shown = escape(place)
    return "./" + shown if shown.lstrip().startswith("::") else shown


def _escaped(character: str) -> str:
    code = ord(character)
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cells(line: str) -> list[tuple[str, int]]:
    """What is shown for each character of a source line, with its width in terminal columns.

    Tabs become spaces up to the next stop; wide characters take two columns, combining marks none.
    """
    if line.isascii() and line.isprintable():
        return [(character, 1) for character in line]
    from unicodedata import combining, east_asian_width

    shown = []
    column = 0
    for character in line:
        if character == "\t":
            width = TAB - column % TAB
            item = (" " * width, width)
        elif not character.isprintable():
            text = _escaped(character)
            item = (text, len(text))
        elif combining(character):
            item = (character, 0)
        else:
            item = (character, 2 if east_asian_width(character) in "WF" else 1)
        shown.append(item)
        column += item[1]
    return shown


def clip(shown: list[tuple[str, int]], first: int, last: int, width: int) -> tuple[int, int]:
    """Which part ``[start, end)`` of a line to show in ``width`` columns so that ``[first, last)`` is in sight.

    The span's start always is; room which is left over goes to both sides of it.
    """
    total = sum(columns for _, columns in shown)
    if total <= width:
        return 0, len(shown)
    first = min(first, len(shown))
    start = end = first
    room = width
    # The span itself first, then a little before it, then as much as fits after it, then before it again.
    while end < min(max(last, first), len(shown)) and shown[end][1] <= room:
        room -= shown[end][1]
        end += 1
    before = room // 3
    while start > 0 and shown[start - 1][1] <= before:
        before -= shown[start - 1][1]
        room -= shown[start - 1][1]
        start -= 1
    while end < len(shown) and shown[end][1] <= room:
        room -= shown[end][1]
        end += 1
    while start > 0 and shown[start - 1][1] <= room:
        room -= shown[start - 1][1]
        start -= 1
    return start, end
