"""What the two branches of a condition have done, once both were walked."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from validate_ddp.interpreter import facts, ranks
from validate_ddp.interpreter.fact import Fact, Flag, Guard
from validate_ddp.interpreter.machine import LEAVES, Machine, Outcome
from validate_ddp.interpreter.sameness import hangs_on_rank
from validate_ddp.interpreter.values import Const, Instance, Opaque, Rank, Resource, WorldSize, bare, reaching

if TYPE_CHECKING:
    from validate_ddp.interpreter.values import Site


def set_apart(machine: Machine, outcome: Outcome, known: int) -> None:
    """Mark what a branch did that ends the program before any rank but one was started: `if export: ...; return`."""
    if outcome.ends not in LEAVES or sum(1 for frame in machine.frames if frame.call is not None) > 1:
        return
    if not any(isinstance(fact, (facts.ProcessGroup, facts.Wrap, facts.Launch)) for fact in machine.facts):
        _leave_to_one(machine, machine.facts[known:])


def _leave_to_one(machine: Machine, done: list[Fact]) -> None:
    """Mark what one process alone does; the functions that do it are walked again where others call them."""
    for fact in done:
        fact.flags |= {Flag.ALONE}
    if done:
        machine.fruitless.clear()


_OF_RANKS = (
    facts.ProcessGroup,
    facts.Launch,
    facts.Wrap,
    facts.Sampler,
    facts.Collective,
    facts.GroupRank,
    facts.Shard,
    facts.Partition,
    facts.DataParallel,
)
"""What a program for one process has none of."""


class Mark(NamedTuple):
    """How much was known at some point of the walk: facts; how often a group was started, or a framework that starts
    one; how often facts were met; objects and scopes that were made."""

    facts: int
    starts: int
    meetings: int
    made: int


def mark(machine: Machine) -> Mark:
    """How much is known now."""
    counts = machine.counts
    return Mark(len(machine.facts), counts.starts + counts.launches, counts.meetings, len(machine.made))


def keep_apart(machine: Machine, marks: list[Mark]) -> None:
    """Mark what an alternative does that has nothing to do with ranks, beside one that starts their group: the
    sub-command `export` beside `train` is not known to run on several ranks; and what its objects will do, as the
    trainer for one process beside the one for several. marks: before, between and after them.
    """
    if marks[0].starts or marks[-1].starts == marks[0].starts:
        return
    for before, after in itertools.pairwise(marks):
        own = machine.facts[before.facts : after.facts]
        if before.starts == after.starts and not any(map(_is_of_ranks, own)):
            _leave_to_one(machine, [fact for fact in own if _is_done_by_one(machine, fact, after, marks)])
            for made in machine.made[before.made : after.made]:
                if isinstance(made, Instance):
                    made.alone = True


def _is_done_by_one(machine: Machine, fact: Fact, end: Mark, marks: list[Mark]) -> bool:
    """Whether what an alternative does, which ends at ``end``, is done by none of several ranks after it."""
    again = machine.counts.again
    later = [each for each in again.get(id(fact), ()) if each > end.meetings]
    for before, after in itertools.pairwise(marks) if later else ():
        span = range(before.meetings + 1, after.meetings + 1)
        if any(each in span for each in later):
            met = [it for it in machine.facts if any(each in span for each in again.get(id(it), ()))]
            if before.starts != after.starts or any(map(_is_of_ranks, machine.facts[before.facts : after.facts] + met)):
                return False
    return True


def _is_of_ranks(fact: Fact) -> bool:
    """Whether it is for several ranks alone, is left to some of them, or asks which one this is."""
    if isinstance(fact, _OF_RANKS) or fact.who != "all":
        return True
    values = (value for value in fact.given.values() if isinstance(value, tuple))  # others are no values of the program
    return any(isinstance(part, (Rank, WorldSize)) for value in values for part in reaching(value))


def rejoin(machine: Machine, site: Site, first: int, second: int) -> None:
    """Every rank does what both branches of a condition on the rank lead to: `train(log) if main else train(None)`.

    first, second: how many facts were known before each branch of the condition at ``site``. A fact of one function
    that each branch calls, with roles that the ranks cannot differ about, is told once, of all ranks.
    """
    others = {_key(fact): fact for fact in machine.facts[second:] if _is_called(fact, site)}
    gone = []
    for fact in machine.facts[first:second] if others else ():
        twin = others.pop(_key(fact), None) if _is_called(fact, site) else None
        if twin is not None and _alike(fact, twin) and _guards(fact, site) == _guards(twin, site):
            fact.guards = _guards(fact, site)
            fact.who = ranks.all_of(guard.who for guard in fact.guards)
            gone.append(twin)
    if gone:
        dropped = set(map(id, gone))
        machine.facts[second:] = [fact for fact in machine.facts[second:] if id(fact) not in dropped]


def _split_at(fact: Fact, site: Site) -> Guard | None:
    return next((guard for guard in fact.guards if guard.site == site and guard.who in ranks.PARTIAL), None)


def _guards(fact: Fact, site: Site) -> tuple[Guard, ...]:
    """The other conditions around it."""
    return tuple(guard for guard in fact.guards if guard.site != site)


def _is_called(fact: Fact, site: Site) -> bool:
    """Whether a function that is called in the branch does it, not the branch itself."""
    split = _split_at(fact, site)
    return split is not None and split.exact and len(fact.chain) > split.depth


def _key(fact: Fact) -> tuple[Any, ...]:
    return (type(fact), fact.name, fact.site, tuple(loop.site for loop in fact.loops))


def _alike(fact: Fact, twin: Fact) -> bool:
    """Whether what plays the roles of the two is alike as far as is known, and holds no rank."""
    given, its = fact.given, twin.given
    return all(_same(value, its.get(role)) for role, value in given.items() if role != "name")


def _same(value: Any, other: Any) -> bool:
    if not isinstance(value, tuple) or not isinstance(other, tuple):
        return bool(value == other) or (isinstance(value, dict) and isinstance(other, dict))
    mine, its = bare(value), bare(other)
    return len(mine) == len(its) and all(map(_same_atom, mine, its))


def _same_atom(atom: Any, other: Any) -> bool:
    if atom is other:
        return True
    if type(atom) is not type(other):
        return False
    if isinstance(atom, Const):
        return bool(atom.value == other.value)
    if isinstance(atom, Opaque):
        return atom.name == other.name and not hangs_on_rank((atom, other))
    if isinstance(atom, (Resource, Instance)):
        return bool(atom.site == other.site)
    return False
