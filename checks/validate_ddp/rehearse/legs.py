"""A run that saves only at its end: which numbers of its command line may have it end, and so save, after fewer steps.

A number counts by what the run has done that many of: optimizer steps, iterations over a loader, or backwards. That it
is the number is seen when the run is made with a smaller one: it ends after fewer steps, which are the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from validate_ddp.record.restart import moments
from validate_ddp.record.run import Run
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

MOST = 4
"""Numbers that are tried."""


class Leg(NamedTuple):
    """A command line with a smaller number in it, and how the change is told."""

    arguments: tuple[str, ...]
    told: str


def legs(arguments: tuple[str, ...], whole: Run, least: int) -> list[Leg]:
    """Those to try, the likeliest first. least: the steps that are to be taken."""
    steps = len(moments(whole, whole.ranks[0]))
    found: list[Leg] = []
    for value in _done(whole):
        if value > 1:
            fewer = max(1, min(value - 1, -(-value * least // steps)))
            found += [each for each in _with(arguments, whole, value, fewer) if each not in found]
    return found[:MOST]


def _done(whole: Run) -> list[int]:
    """What the first rank has done so many of."""
    every = [each.event for each in moments(whole, whole.ranks[0])]
    of_each = Counter(each.optimizer for each in every)
    turns = {turn for each in every for turn in each.turns}
    return list(dict.fromkeys([len(every), *of_each.values(), len(turns), sum(len(each.losses) for each in every)]))


def _with(arguments: tuple[str, ...], whole: Run, value: int, fewer: int) -> Iterator[Leg]:
    """The command lines with ``fewer`` in the place of ``value``."""
    said = set()
    for at, word in enumerate(arguments):
        name, _, number = word.rpartition("=")
        if number == str(value):
            said.add(name or arguments[at - 1])
            new = f"{name}={fewer}" if name else str(fewer)
            before = (arguments[at - 1],) if at and not name and arguments[at - 1].startswith("-") else ()
            yield Leg((*arguments[:at], new, *arguments[at + 1 :]), " ".join((*before, new)))
    for event in whole.of(whole.ranks[0], protocol.Settings):
        for option, held in zip(event.names, event.values, strict=True):
            if held == value and option not in said:
                yield Leg((*arguments, option, str(fewer)), f"{option} {fewer}")
