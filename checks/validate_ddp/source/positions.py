"""Lines and columns: what the parser counts (UTF-8 bytes from 0) turned into what people count (characters from 1)."""

from __future__ import annotations


def lines_of(text: str) -> list[str]:
    r"""The lines of a text as Python counts them: only ``\n``, ``\r\n`` and a lone ``\r`` end a line.

    ``str.splitlines`` ends lines at form feeds and Unicode separators too, and so drifts away from ``ast``.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.split("\n")


def line_starts(text: str) -> list[int]:
    """Index in ``text`` of the first character of each line; never empty."""
    starts = [0]
    if "\r" not in text:
        position = text.find("\n")
        while position >= 0:
            starts.append(position + 1)
            position = text.find("\n", position + 1)
        return starts
    previous = ""
    for index, character in enumerate(text):
        if previous == "\r" and character != "\n":
            starts.append(index)
        if character == "\n":
            starts.append(index + 1)
        previous = character
    if previous == "\r":
        starts.append(len(text))
    return starts


def character_column(line: str, byte_column: int) -> int:
    """Characters of ``line`` before a column counted in UTF-8 bytes; a column past the end gives the line's length."""
    if byte_column <= 0:
        return 0
    if line.isascii():
        return min(byte_column, len(line))
    data = line.encode("utf-8", "surrogatepass")[:byte_column]
    return len(data.decode("utf-8", "ignore"))


def offset_of(text: str, starts: list[int], line: int, byte_column: int) -> int:
    """Index in ``text`` of a parser position; positions outside of the text are clamped to it."""
    if line < 1:
        return 0
    if line > len(starts):
        return len(text)
    start = starts[line - 1]
    end = starts[line] if line < len(starts) else len(text)
    return start + character_column(text[start:end], byte_column)


def with_plain_ends(text: str) -> str:
    r"""As many characters with ``\n`` as the only line end, for ``tokenize``, which misreads a lone ``\r``."""
    if "\r" not in text:
        return text
    return text.replace("\\\r\n", " \\\n").replace("\r\n", " \n").replace("\r", "\n")
