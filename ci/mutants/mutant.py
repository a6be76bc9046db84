"""A mutant: a correct script with one planted defect, and the places where a finding about it may stand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Edit(NamedTuple):
    """Characters ``start`` to ``end`` of a file become ``text``."""

    path: str
    start: int
    end: int
    text: str


class Place(NamedTuple):
    """Characters ``start`` to ``end`` of a file, counted before the edits."""

    path: str
    start: int
    end: int


class Mutant(NamedTuple):
    """what: the planted change, in words. expected: where the finding may be. also: codes that are true of it too."""

    code: str
    what: str
    edits: tuple[Edit, ...]
    expected: tuple[Place, ...]
    also: frozenset[str] = frozenset()

    def texts(self, originals: dict[str, str]) -> dict[str, str]:
        """The text of each file, mutated."""
        texts = dict(originals)
        for edit in sorted(self.edits, key=lambda edit: (edit.start, edit.end), reverse=True):
            text = texts[edit.path]
            texts[edit.path] = text[: edit.start] + edit.text + text[edit.end :]
        return texts

    def expected_lines(self, originals: dict[str, str]) -> frozenset[tuple[str, int]]:
        """Path and line, in the mutated files, of every place where the finding may stand."""
        texts = self.texts(originals)
        lines: set[tuple[str, int]] = set()
        for place in self.expected:
            edits = [edit for edit in self.edits if edit.path == place.path]
            start = place.start + _growth(
                edit for edit in edits if edit.end <= place.start and edit.start < place.start
            )
            end = place.end + _growth(edit for edit in edits if edit.start <= place.end)
            first = texts[place.path].count("\n", 0, start) + 1
            last = texts[place.path].count("\n", 0, max(start, end - 1)) + 1
            lines.update((place.path, line) for line in range(first, last + 1))
        return frozenset(lines)


def _growth(edits: Iterable[Edit]) -> int:
    return sum(len(edit.text) - (edit.end - edit.start) for edit in edits)
