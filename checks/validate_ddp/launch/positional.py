"""Positional parameters of a script that may be left out, and are then taken from what follows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from validate_ddp.launch.origin import Origin
from validate_ddp.launch.records import Positional, Record, Word

if TYPE_CHECKING:
    Node = Any

_TAKEN = re.compile(rb"\"?\$\{(\d):?-[^}]*\}\"?$")
_FROM = re.compile(rb"\$\{[@*]:(\d+)\}")


class _Taken(NamedTuple):
    name: str
    position: int
    node: Node


class Positionals:
    """What a script does with its parameters, in the order of the text. within: how many functions are open."""

    def __init__(self, origin: Origin, records: list[Record]) -> None:
        self.origin = origin
        self.within = 0
        self._records = records
        self._taken: list[_Taken] = []
        self._shifts = 0
        self._uncertain = False
        self._handed: list[tuple[Node, int]] = []
        self._tests: list[bytes] = []

    def taken(self, name: str, value: Node | None, node: Node, surely: bool) -> None:
        """``name=${1:-default}``."""
        found = _TAKEN.match(value.text) if value is not None else None
        if found and surely and not self.within:
            self._taken.append(_Taken(name, int(found.group(1)) + self._shifts, node))

    def shifted(self, words: list[Word], surely: bool) -> None:
        """``shift``, by as many as it says."""
        if self.within:
            return
        count = words[1].number if len(words) > 1 else 1
        if count is None or not surely:
            self._uncertain = True
        else:
            self._shifts += count

    def reset(self) -> None:
        """``set``: other parameters from here on."""
        self._uncertain = True

    def tested(self, node: Node) -> None:
        """A condition: the script looks at what it was given."""
        self._tests.append(node.text.partition(b"\n")[0] if node.type != "test_command" else node.text)

    def handed_on(self, node: Node, words: list[Word]) -> None:
        """A command that is given the rest of the parameters."""
        if self.within or self._uncertain:
            return
        found = _FROM.search(node.text)
        if found:
            self._handed.append((node, int(found.group(1)) - 1 + self._shifts))
        elif self._shifts and any("@" in word.names or "*" in word.names for word in words):
            self._handed.append((node, self._shifts))

    def finish(self) -> None:
        """Record the parameters that take what was meant for the command."""
        tests = b"\n".join(self._tests)
        if b"$#" in tests or not self._handed:
            return
        for taken in self._taken:
            asked = rf"\$\{{?(?:{taken.position}|{re.escape(taken.name)})\b".encode()
            if re.search(asked, tests):
                continue
            for node, eaten in self._handed:
                if taken.position <= eaten:
                    span = self.origin.span(taken.node.start_byte, taken.node.end_byte)
                    handed = self.origin.span(node.start_byte, node.end_byte)
                    self._records.append(Positional(taken.name, taken.position, span, span, handed))
                    break
