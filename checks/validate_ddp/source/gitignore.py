"""Matches paths against .gitignore patterns as git does, in time linear in the pattern and in the path.

Own code, because importing the library for it costs more than checking a script; its tests hold it to
``git check-ignore``. Unlike git it matches characters, not bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_ANY, _STAR = object(), object()
_ANY_FOLDERS = object()
"""A part of a pattern that is ``**``: any number of folders; as the last part, at least one name."""

_CLASSES: dict[str, Any] = {
    "alnum": str.isalnum,
    "alpha": str.isalpha,
    "blank": lambda c: c in " \t",
    "cntrl": lambda c: c < " " or c == "\x7f",
    "digit": str.isdigit,
    "graph": lambda c: c.isprintable() and c != " ",
    "lower": str.islower,
    "print": str.isprintable,
    "punct": lambda c: c.isprintable() and not c.isalnum() and c != " ",
    "space": str.isspace,
    "upper": str.isupper,
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}


class _Set(NamedTuple):
    """A bracket expression: ranges of characters and classes."""

    negated: bool
    ranges: tuple[tuple[str, str], ...]
    classes: tuple[Any, ...]

    def holds(self, character: str) -> bool:
        inside = any(low <= character <= high for low, high in self.ranges)
        return (inside or any(test(character) for test in self.classes)) != self.negated


class _Pattern(NamedTuple):
    """One line. parts: what each name of the path must match, a string where it is literal."""

    order: int
    ignores: bool
    folders_only: bool
    anchored: bool
    parts: tuple[Any, ...]


class Patterns:
    """The patterns of one file, in order; the last that matches decides."""

    __slots__ = ("_globs", "_names")

    def __init__(self, text: str) -> None:
        self._names: dict[str, list[_Pattern]] = {}
        self._globs: list[_Pattern] = []
        for order, line in enumerate(text.removeprefix("\ufeff").split("\n")):
            pattern = _parse(line.removesuffix("\r"), order)
            if pattern is None:
                continue
            last = pattern.parts[-1]
            if isinstance(last, str):  # most patterns end in a plain name: found by look-up, without a search
                self._names.setdefault(last, []).append(pattern)
            else:
                self._globs.append(pattern)

    def verdict(self, path: str, is_folder: bool) -> bool | None:
        """True: ignored, False: taken in again, None: no pattern matches.

        path: relative to the folder of the patterns, with forward slashes. Says nothing of the folders above it: a
        caller that walks does not enter an ignored one.
        """
        name = path[path.rfind("/") + 1 :]
        names: list[str] | None = None
        best: _Pattern | None = None
        for pattern in (*self._names.get(name, ()), *self._globs):
            if (pattern.folders_only and not is_folder) or (best is not None and pattern.order < best.order):
                continue
            if not pattern.anchored:
                matches = _matches_name(pattern.parts[0], name)
            else:
                names = names or path.split("/")
                matches = _matches_path(pattern.parts, names)
            if matches:
                best = pattern
        return None if best is None else best.ignores


def _parse(line: str, order: int) -> _Pattern | None:
    if line.startswith("#"):
        return None
    line = _without_trailing_spaces(line)
    ignores = not line.startswith("!")
    if not ignores:
        line = line[1:]
    folders_only = line.endswith("/")
    if folders_only:
        line = line[:-1]
    anchored = "/" in line
    line = line.removeprefix("/")
    if not line:
        return None
    parts = _parts(line)
    if parts is None:
        return None
    if not anchored and parts[0] is _ANY_FOLDERS:
        parts = [(_STAR,)]
    return _Pattern(order, ignores, folders_only, anchored, tuple(parts))


def _without_trailing_spaces(line: str) -> str:
    """Trailing spaces go, unless a backslash stands before one."""
    end = position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
            end = min(position, len(line))
            continue
        position += 1
        if line[position - 1] != " ":
            end = position
    return line[:end]


def _parts(pattern: str) -> list[Any] | None:
    """What each name must match: a string, a tuple of tokens, or any folders. None where nothing can ever match."""
    if not any(sign in pattern for sign in "*?[\\"):
        return list(pattern.split("/"))
    parts: list[Any] = []
    tokens: list[Any] = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == "\\":
            if position == len(pattern):
                return None
            character = pattern[position]
            position += 1
            token: Any = character
        elif character == "[":
            found = _bracket(pattern, position)
            if found is None:
                return None
            token, position = found
        else:
            token = {"*": _STAR, "?": _ANY}.get(character, character)
        if token == "/":
            parts.append(_part(tokens))
            tokens = []
        else:
            tokens.append(token)
    parts.append(_part(tokens))
    return parts


def _part(tokens: list[Any]) -> Any:
    if all(isinstance(token, str) for token in tokens):
        return "".join(tokens)
    if len(tokens) > 1 and all(token is _STAR for token in tokens):
        return _ANY_FOLDERS
    return tuple(tokens)


def _bracket(pattern: str, position: int) -> tuple[_Set, int] | None:
    """The set that begins behind ``[``, and the position behind its ``]``; None where it has no end."""
    negated = pattern[position : position + 1] in ("!", "^") and position < len(pattern)
    position += negated
    ranges: list[tuple[str, str]] = []
    classes: list[Any] = []
    previous = ""
    first = True
    while first or pattern[position : position + 1] != "]":
        first = False
        if position >= len(pattern):
            return None
        character = pattern[position]
        if character == "[" and pattern[position + 1 : position + 2] == ":":
            end = pattern.find("]", position + 2)
            if end < 0:
                return None
            if end > position + 2 and pattern[end - 1] == ":":
                test = _CLASSES.get(pattern[position + 2 : end - 1])
                if test is None:
                    return None
                classes.append(test)
                previous, position = "", end + 1
                continue
        is_range = character == "-" and previous and pattern[position + 1 : position + 2] not in ("", "]")
        position += bool(is_range)
        if pattern[position] == "\\":
            position += 1
            if position >= len(pattern):
                return None
        character = pattern[position]
        ranges.append((previous if is_range else character, character))
        previous = "" if is_range else character
        position += 1
    return _Set(negated, tuple(ranges), tuple(classes)), position + 1


def _matches_path(parts: tuple[Any, ...], names: list[str]) -> bool:
    """Whole path against whole pattern; goes back only to the last ``**``, so the time is bounded by the product."""
    part = name = 0
    retry_part = retry_name = -1
    while name < len(names):
        if part < len(parts) and parts[part] is _ANY_FOLDERS:
            if part + 1 == len(parts):
                return True
            retry_part, retry_name = part, name
            part += 1
        elif part < len(parts) and _matches_name(parts[part], names[name]):
            part += 1
            name += 1
        elif retry_part >= 0:
            retry_name += 1
            part, name = retry_part + 1, retry_name
        else:
            return False
    return part == len(parts)


def _matches_name(tokens: Any, name: str) -> bool:
    """One name against one part; goes back only to the last ``*``."""
    if isinstance(tokens, str):
        return tokens == name
    if isinstance(tokens[-1], str) and not name.endswith(tokens[-1]):  # most names fail at once: `*.so`
        return False
    token = position = 0
    retry_token = retry_position = -1
    while position < len(name):
        wanted = tokens[token] if token < len(tokens) else None
        if wanted is _STAR:
            retry_token, retry_position = token, position
            token += 1
        elif wanted is not None and _matches_character(wanted, name[position]):
            token += 1
            position += 1
        elif retry_token >= 0:
            retry_position += 1
            token, position = retry_token + 1, retry_position
        else:
            return False
    return all(left is _STAR for left in tokens[token:])


def _matches_character(token: Any, character: str) -> bool:
    if token is _ANY:
        return True
    if isinstance(token, _Set):
        return token.holds(character)
    return bool(token == character)
