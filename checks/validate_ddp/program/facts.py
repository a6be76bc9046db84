"""What the walk records: one fact for each thing that a rule may care about, with its place, ranks and loops."""

from __future__ import annotations

from typing import NamedTuple

from validate_ddp.program.values import Site, Value


class Loop(NamedTuple):
    """A loop around a fact. counts: it runs over numbers or for ever, as epochs and steps do, not over given items."""

    site: Site
    target: str
    counts: bool
    once: bool


class Guard(NamedTuple):
    """A condition on the rank around a fact: only ranks ``who`` pass."""

    who: str
    site: Site


class Fact:
    """Something that the program does.

    kind: process_group, device, sampler, loader, iterate, set_epoch, wrap, forward, backward, collective, save, load,
        load_state, seed or launch.
    name: the function of the library that does it, without its module.
    who: the ranks that reach it, as ``ranks`` names them.
    guards: the conditions on the rank around it, outermost first.
    chain: the calls that lead to it from the entry, outermost first.
    loops: the loops around it, outermost first, those around its callers included.
    values: what it works on, by role.
    flags: marks of its surroundings: no_grad, handler, no_sync, process_first.
    """

    __slots__ = ("kind", "name", "site", "who", "guards", "chain", "loops", "values", "flags", "order")

    def __init__(
        self,
        kind: str,
        name: str,
        site: Site,
        who: str,
        guards: tuple[Guard, ...],
        chain: tuple[Site, ...],
        loops: tuple[Loop, ...],
        values: dict[str, Value],
        flags: frozenset[str],
        order: int,
    ) -> None:
        self.kind = kind
        self.name = name
        self.site = site
        self.who = who
        self.guards = guards
        self.chain = chain
        self.loops = loops
        self.values = values
        self.flags = flags
        self.order = order

    def value(self, role: str) -> Value:
        """What plays ``role`` here; empty where nothing does."""
        return self.values.get(role, ())

    @property
    def in_epoch_loop(self) -> bool:
        """Whether a counting loop that runs more than once lies around it."""
        return any(loop.counts and not loop.once for loop in self.loops)
