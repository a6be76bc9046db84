"""Ways out that a rank takes on its own numbers, as on a loss that is not one, and what the others then wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from validate_ddp.interpreter import facts, metrics
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.gradients import TRAINED
from validate_ddp.interpreter.names_of_training import SHARED
from validate_ddp.interpreter.objects import Batch, Output
from validate_ddp.interpreter.surroundings import levels
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Instance, Site, bare, reaching
from validate_ddp.source.syntax import Extent, FunctionDef

LEAVE = ("exit", "quit", "sys.exit", "os._exit")
"""What ends the program."""


def is_within(site: Site, fact: Fact) -> bool:
    """Whether a loop is of the function that is left, not of one of its callers."""
    return site.path == fact.site.path and site.function == fact.site.function


def in_call(program: Program, fact: Fact, other: Fact) -> bool:
    """Whether ``other`` is done by the function that is left, where both have the same calls around them: one call may
    be of several functions, as of each of a list of callbacks."""
    there = (*other.chain, other.site)[len(fact.chain)]
    return there.path == fact.site.path and _function(program, there) == _function(program, fact.site)


def _function(program: Program, site: Site) -> Extent | None:
    around = [level.owner for level in levels(program.body(site.path), site.span)]
    return next((owner.span for owner in reversed(around) if isinstance(owner, FunctionDef)), None)


def missed(fact: facts.Exit, awaited: Sequence[Fact], sharded: list[Any]) -> Fact | None:
    """What the other ranks go on to after a way out on this rank's own loss, which no collective has made theirs.

    awaited: by what they average gradients: backwards of wrapped models, or collectives of the script's own.
    """
    if fact.who != "all" or not fact.loops or Flag.JOIN in fact.flags or not _is_own(fact, sharded):
        return None
    serial = fact.loops[-1].serial
    leaves_loop = fact.name in ("break", *LEAVE) or (fact.name == "return" and is_within(fact.loops[-1].site, fact))
    for other in awaited:
        if not any(loop.serial == serial for loop in other.loops):
            continue
        if fact.name == "skip":
            if other.site.path == fact.site.path and other.site.statement == fact.site.statement:
                return other
        elif leaves_loop or (other.order > fact.order and _is_left_out(fact, other)):
            return other
    return None


def _is_left_out(fact: facts.Exit, other: Fact) -> bool:
    """Whether the rank does not come to it in this turn: a `return` leaves out what is of its own function alone."""
    return fact.name != "return" or other.chain[: len(fact.chain)] == fact.chain


def is_mixed(fact: facts.Exit) -> bool:
    """Whether something that a collective was applied to went into it too, as the count that a loss is divided by."""
    return metrics.REDUCED in reaching(fact.subject)


def is_of_wrapped(fact: facts.Exit) -> bool:
    """Whether it is about what a wrapper gave, whose backward every rank has to come to."""
    outputs = [part for part in reaching(fact.subject) if isinstance(part, Output)]
    return any(isinstance(atom, TRAINED) for output in outputs for atom in bare(output.model))


def _is_own(fact: facts.Exit, sharded: list[Any]) -> bool:
    """Whether the condition is about what this rank alone has made of its batch."""
    parts = reaching(fact.subject)
    if metrics.is_agreed(parts) or any(map(SHARED.matches, fact.words.split())):
        return False
    if is_of_wrapped(fact):
        return True
    models = [atom for part in parts if isinstance(part, Output) for atom in bare(part.model)]
    if any(atom is model for atom in models for model in sharded if isinstance(atom, Instance)):
        return True
    return metrics.REDUCED not in parts and any(isinstance(part, Batch) for part in parts)


def has_talked(fact: facts.Exit, meetings: list[Fact]) -> bool:
    """Whether a collective before it may have told all ranks, in a way that is not followed."""
    return any(
        isinstance(other, facts.Collective) and other.order < fact.order and other.loops and "barrier" not in other.name
        for other in meetings
    )
