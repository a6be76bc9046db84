"""Looks at text token by token, without a parse: what would overrun the parser, and f-strings of a newer Python."""

from __future__ import annotations

import re
from typing import NamedTuple

_CODE = re.compile(
    r"(?P<comment>#[^\r\n]*)"
    r"|(?P<prefix>\b[rRbBuUfFtT]{1,2}(?=['\"]))?(?P<quote>'''|\"\"\"|'|\")"
    r"|(?P<line>\\?(?:\r\n|\r|\n))"
    r"|(?P<open>[(\[{])"
    r"|(?P<close>[)\]}])"
    r"|(?P<separator>[,;:=])"
    r"|(?P<other>\w+|[^\w\s])"
)
_REST = {
    quote: re.compile(rf"(?:[^{quote[0]}\\{end}]|\\(?:\r\n|.){more})*(?:{quote}|\Z)?", re.DOTALL)
    for quote, end, more in (
        ("'", "\r\n", ""),
        ('"', "\r\n", ""),
        ("'''", "", "|'(?!'')"),
        ('"""', "", '|"(?!"")'),
    )
}
"""What follows the opening quote of a plain string, through its closing quote."""
_LITERAL = {
    quote: re.compile(rf"\\N\{{[^{{}}\r\n]*\}}|\\[^{{}}]|\{{\{{|\}}\}}|\{{|\}}|{quote}|\r|\n", re.DOTALL)
    for quote in _REST
}

_OTHER = {"'": '"', '"': "'", "'''": '"""', '"""': "'''"}
_ESCAPE = re.compile(r"\\[^\r\n]")


class FStrings(NamedTuple):
    """What the f-strings of a text hold.

    braces: replacement fields and doubled braces in all.
    most_fields: the most replacement fields in one f-string, which begins at offset ``most_at``.
    newer_at: offset of the first use of what Python has only since 3.12, -1 without one; ``newer``: what it is.
    changes: (offset, text) of what would have to stand in place of as many characters for an older Python.
    """

    braces: int
    most_fields: int
    most_at: int
    newer_at: int
    newer: str
    changes: tuple[tuple[int, str], ...] = ()


class _Mode:
    """Where the scanner is within an f-string: in its literal part, or in the expression of a field."""

    __slots__ = ("depth", "is_spec", "quote", "raw", "swapped")

    def __init__(self, quote: str, raw: bool, depth: int = -1, is_spec: bool = False, swapped: bool = False) -> None:
        self.quote = quote
        self.swapped = swapped  # its quotes are those of the string around it: an older Python needs the other kind
        self.raw = raw
        self.depth = depth  # of brackets in an expression; -1 in a literal part
        self.is_spec = is_spec  # a literal part behind the colon of a field


class _Scanner:
    """Walks over code and f-strings by the rules of Python 3.12, of which the older rules are a part."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.modes: list[_Mode] = []
        self.start = 0
        self.braces = self.fields = 0
        self.most = (0, -1)
        self.newer = (-1, "")
        self.seen = (-1, "")  # becomes ``newer`` once its f-string is closed: an unclosed one is plainly wrong
        self.changes: list[tuple[int, str]] = []

    def run(self) -> FStrings:
        position = 0
        while position < len(self.text):
            literal = self.modes and self.modes[-1].depth < 0
            position = self._literal(position) if literal else self._code(position)
        self.modes.clear()
        self._end_outermost()
        return FStrings(self.braces, *self.most, *self.newer, tuple(self.changes))

    def _code(self, position: int) -> int:
        found = _CODE.search(self.text, position)
        if found is None:
            return len(self.text)
        mode = self.modes[-1] if self.modes else None
        kind = found.lastgroup
        if kind == "quote":
            return self._string(found.group("prefix") or "", found.group("quote"), found.start(), found.end())
        if mode is None:
            return found.end()
        if kind == "comment":
            self._newer(found.start(), "a comment within an f-string")
            self.changes.append((found.start(), " " * len(found.group())))
        elif kind == "line":
            if len(mode.quote) == 1:
                self._newer(found.start(), "a line break within an f-string's field")
            elif found.group().startswith("\\"):
                self._newer(found.start(), "a backslash within an f-string's field")
        elif kind == "open":
            mode.depth += 1
        elif kind == "close":
            if mode.depth == 0 and found.group() == "}":
                self.modes.pop()
            else:
                mode.depth = max(0, mode.depth - 1)
        elif found.group() == ":" and mode.depth == 0:
            self.modes[-1] = _Mode(mode.quote, mode.raw, is_spec=True)
        return found.end()

    def _string(self, prefix: str, quote: str, start: int, end: int) -> int:
        swapped = any(mode.quote[0] == quote[0] and len(mode.quote) <= len(quote) for mode in self.modes)
        if swapped:
            self._newer(start, "an f-string that uses its own quotes within")
            self.changes.append((end - len(quote), _OTHER[quote]))
        lowered = prefix.lower()
        if "f" in lowered or "t" in lowered:
            if not self.modes:
                self.start = start
            self.modes.append(_Mode(quote, "r" in lowered, swapped=swapped))
            return end
        found = _REST[quote].match(self.text, end)
        after = found.end() if found else end
        if swapped and after - end >= len(quote):
            self.changes.append((after - len(quote), _OTHER[quote]))
        if self.modes and "\\" in self.text[end:after]:
            self._newer(start, "a backslash within an f-string's field")
            self.changes += [(end + escape.start(), "  ") for escape in _ESCAPE.finditer(self.text[end:after])]
        return after

    def _literal(self, position: int) -> int:
        mode = self.modes[-1]
        found = _LITERAL[mode.quote].search(self.text, position)
        if found is None:
            return len(self.text)
        token = found.group()
        if token == mode.quote:
            is_wrong = mode.is_spec  # the field was never closed
            if mode.swapped:
                self.changes.append((found.start(), _OTHER[mode.quote]))
            while self.modes and self.modes.pop().is_spec:
                pass
            if is_wrong:
                self.seen = (-1, "")
            if not self.modes and self.newer[0] < 0:
                self.newer = self.seen
            self._end_outermost()
        elif token in ("\n", "\r"):
            if len(mode.quote) == 1:
                self.modes.clear()  # never closed
                self._end_outermost()
        elif token == "}" and mode.is_spec:
            self.modes.pop()
        elif token == "{" or (token == "{{" and mode.is_spec):
            self.fields += 1
            self.modes.append(_Mode(mode.quote, mode.raw, depth=0))
            return found.start() + 1
        elif token == "}}" and mode.is_spec:
            self.modes.pop()
            return found.start() + 1
        elif token == "{{":
            self.braces += 1
        elif mode.raw and token.startswith("\\N"):
            return found.start() + 2
        return found.end()

    def _end_outermost(self) -> None:
        if not self.modes:
            if self.fields > self.most[0]:
                self.most = (self.fields, self.start)
            self.braces += self.fields
            self.fields = 0
            self.seen = (-1, "")

    def _newer(self, position: int, what: str) -> None:
        if self.seen[0] < 0:
            self.seen = (position, what)


def fstrings(text: str) -> FStrings:
    """Scan the f-strings of ``text``. Linear; about a second for a megabyte, so only for text that gives reason."""
    if re.search(r"\b[rR]?[fFtT][rR]?['\"]", text) is None:
        return FStrings(0, 0, -1, -1, "")
    return _Scanner(text).run()


def for_older_python(text: str) -> str | None:
    """The text with the f-strings of Python 3.12 written as older ones; None where it holds none.

    Line for line and character for character: only quotes, comments and escapes within fields are others, the latter
    two as blanks. Where that is not enough, as for a line break in a field, the result does not parse either.
    """
    pieces: list[str] = []
    position = 0
    for start, new in sorted(fstrings(text).changes):
        pieces += text[position:start], new
        position = start + len(new)
    return "".join((*pieces, text[position:])) if pieces else None


def longest_name(text: str) -> int:
    """The most dots in one dotted name, such as ``a.b.c``; names may go on behind a backslash at a line's end."""
    space = r"(?:[ \t\f]|\\(?:\r\n|\r|\n))*"
    names = re.finditer(rf"(?<!\w)(?:\w+{space}\.{space})+", text)
    return max((name.group().count(".") for name in names), default=0)


def longest_chain(text: str) -> int:
    """The most tokens in a row that one expression could nest, as ``a.b.c`` or ``1 + 1`` do: a bound on its depth."""
    counts = [0]
    longest = position = 0
    while (found := _CODE.search(text, position)) is not None:
        position = found.end()
        kind = found.lastgroup
        if kind == "quote":
            rest = _REST[found.group("quote")].match(text, position)
            position = rest.end() if rest else position
            counts[-1] += 1
        elif kind == "open":
            counts[-1] += 1
            counts.append(0)
        elif kind == "close":
            longest = max(longest, counts.pop())
            counts = counts or [0]
        elif kind == "separator" or (kind == "line" and len(counts) == 1 and not found.group().startswith("\\")):
            longest = max(longest, counts[-1])
            counts[-1] = 0
        elif kind == "other":
            counts[-1] += 1
    return max(longest, *counts)
