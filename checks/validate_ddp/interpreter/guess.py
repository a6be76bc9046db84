"""What a guess from a name is: words or a pattern, of what, what they say, and the case that asked for it."""

from __future__ import annotations

from typing import Literal

Of = Literal["value", "function", "class", "option", "variable", "text"]


class Guess:
    """One guess. It matches the last part of a dotted name, or all of it where it is ``dotted``, in lower case.

    words: the whole name, but for underscores in front. parts: a word between underscores. ends: how the name ends.
    holds: what stands anywhere in it. but: what must not stand in it. case: a line of the script that asked for it, as
    it is met. otherwise: what goes wrong without it.
    """

    __slots__ = ("but", "case", "dotted", "ends", "holds", "known", "of", "otherwise", "parts", "says", "words")

    def __init__(
        self,
        says: str,
        of: Of,
        *,
        case: str,
        otherwise: str,
        words: str = "",
        parts: str = "",
        ends: str = "",
        holds: str = "",
        but: str = "",
        dotted: bool = False,
    ) -> None:
        self.says, self.of, self.case, self.otherwise, self.dotted = says, of, case, otherwise, dotted
        self.words, self.parts = frozenset(words.split()), frozenset(parts.split())
        self.ends, self.holds, self.but = tuple(ends.split()), tuple(holds.split()), tuple(but.split())
        self.known: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        """Whether a name says this; the answer is kept, as a program's names come again and again."""
        known = self.known.get(name)
        if known is None:
            known = self.known[name] = self._matches(name)
        return known

    def _matches(self, name: str) -> bool:
        told = (name if self.dotted else name.rpartition(".")[2].removesuffix("()")).lower()
        return not any(word in told for word in self.but) and (
            told.lstrip("_") in self.words
            or told.endswith(self.ends)
            or any(word in told for word in self.holds)
            or not self.parts.isdisjoint(told.split("_"))
        )
