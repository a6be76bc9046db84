"""How often the walk has come to what, by which alternatives are told apart."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag

_STARTING = ("spawn", "Process")
"""Launches by the script itself: what it runs instead of them may be one of many ranks too."""


class Counts:
    """starts: how often a process group was started. launches: how often a framework was seen at work that does so.
    meetings: how often any fact was met; seen: those, by what makes two the same; again: by a fact's id, which meetings
    were its later ones. choosing: within how many choices of candidates the walk is. tested: what conditions of
    unknown truth hang on of a batch, by path and line."""

    __slots__ = ("again", "choosing", "launches", "meetings", "seen", "starts", "tested")

    def __init__(self) -> None:
        self.starts = self.launches = self.meetings = self.choosing = 0
        self.seen: dict[tuple[Any, ...], Fact] = {}
        self.again: dict[int, list[int]] = {}
        self.tested: dict[tuple[str, int], tuple[Any, ...]] = {}

    def meet(self, identity: tuple[Any, ...], fact: Fact, alone: bool) -> bool:
        """A fact is met; whether for the first time, or the first by more than one process. alone: surely by one."""
        self.meetings += 1
        known = self.seen.setdefault(identity, fact)
        if known is not fact and Flag.ALONE in known.flags and not alone:
            self.seen[identity] = known = fact
        if known is not fact:
            self.again.setdefault(id(known), []).append(self.meetings)
            return False
        self.launches += isinstance(fact, facts.Launch) and fact.name not in _STARTING
        return True
