"""What the walk records: one fact for each thing that a rule may care about, with its place, ranks and loops."""

from __future__ import annotations

from typing import Any, NamedTuple

from validate_ddp.interpreter.ranks import PARTIAL, all_of
from validate_ddp.interpreter.values import Site, Value


class Loop(NamedTuple):
    """A loop around a fact.

    counts: it runs over numbers or for ever, as epochs and steps do, not over given items. once: it surely runs only
    once. serial: tells the activations of one loop apart.
    """

    site: Site
    target: str
    counts: bool
    once: bool
    serial: int = 0


class Guard(NamedTuple):
    """A condition around a fact: only ranks ``who`` pass; ``all`` for one that has nothing to do with the rank.

    depth: number of calls around the condition. exact: it depends on the rank and on nothing else.
    swallows: not a condition but a ``try`` with a handler that catches any error and goes on.
    every: of an unknown one, in which turns of a loop it holds (``turns``), where that is known.
    sure: which ranks pass is no guess from a name.
    apart: of an unknown one, whether ranks may differ about it: it hangs on more than options and counters.
    """

    who: str
    site: Site
    depth: int = 0
    exact: bool = True
    swallows: bool = False
    every: str = ""
    sure: bool = True
    apart: bool = False


class Fact:
    """Something that the program does.

    kind, by what rules look at:
        start: process_group, world_of_one (the script gives itself one), device, option (of the command line), launch
        data: sampler, loader, iterate, epoch_loop, set_epoch, seed, draw (random numbers in a loop, or a random
            transform made)
        model: wrap, shard (in place, FSDP2), partition (tensor or pipeline parallel), data_parallel, rework (something
            done to a wrapper that belongs before wrapping), forward, backward, optimizer, step, zero_grad, mode (train
            or eval)
        ranks: collective, group_rank (the rank within a group is asked for), gather (of a tensor whose gradient ends
            there), absence (something is taken from a value that some of the ranks here do not have), exit (some
            ranks leave a loop, a function or the program)
        numbers: scheduler (a learning rate schedule made from a length), report or decision (of a number summed up
            over batches), no_grad (entered in a loop)
        files: save, load, load_state, sharded_state (a call that gathers, saves or loads shards of all ranks)
    name: the function of the library that does it, without its module.
    who: the ranks that reach it, as ``ranks`` names them.
    guards: the conditions on the rank around it, outermost first.
    chain: the calls that lead to it from the entry, outermost first.
    loops: the loops around it, outermost first, those around its callers included.
    values: what it works on, by role. Of a forward: model, and inputs, the batches that go into it.
    flags: marks of its surroundings: no_grad, no_sync, perhaps_no_sync, join (``Join`` and ``DDP.join``), accumulate,
        process_first, in_turn (a `zero_first` of the program), locked (contexts); handler; any_error (a handler that
        catches what one rank alone may meet); conditional; tried (where a failure is caught); shorted (behind another
        part of a condition); generator; dataset (a method of one); worker (what a loader's workers start with);
        spawned; alone (before any rank but one was started).
    scope: the names at the place, as they are at the end of the walk; None for a fact that was moved.
    """

    __slots__ = ("chain", "flags", "guards", "kind", "loops", "name", "order", "scope", "site", "values", "who")

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
        scope: Any = None,
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
        self.scope = scope

    def value(self, role: str) -> tuple[Any, ...]:
        """What plays ``role`` here; empty where nothing does."""
        return self.values.get(role, ())

    def moved(self, site: Site) -> Fact:
        """The same fact, told of another place."""
        return Fact(
            self.kind,
            self.name,
            site,
            self.who,
            self.guards,
            self.chain,
            self.loops,
            self.values,
            self.flags,
            self.order,
        )

    @property
    def split(self) -> Guard | None:
        """The outermost condition that surely keeps ranks away from the fact."""
        return next((guard for guard in self.guards if guard.who in PARTIAL), None)

    @property
    def hangs_on_unknown(self) -> bool:
        """Whether a condition around it cannot be decided: nothing to do with the rank, or who passes is open."""
        return any(guard.who in ("all", "unclear") and not guard.exact for guard in self.guards)

    @property
    def is_guessed(self) -> bool:
        """Whether it is left to some ranks only as far as the name of something unknown says so."""
        return self.who in PARTIAL and all_of(guard.who for guard in self.guards if guard.sure) not in PARTIAL

    @property
    def divides(self) -> Guard | None:
        """The outermost condition around it, or way out ahead of it, about which the ranks may differ."""
        return next((guard for guard in self.guards if guard.apart), None)

    @property
    def is_open(self) -> bool:
        """Whether it also hangs on a condition of unknown truth in a function called under the split."""
        split = self.split
        return split is not None and any(guard.depth > split.depth and not guard.exact for guard in self.guards)

    @property
    def under_split(self) -> Site:
        """Where the ranks that are let through go on to the fact: the call under the outermost condition, or itself."""
        guard = self.split
        return self.chain[guard.depth] if guard is not None and guard.depth < len(self.chain) else self.site

    def same_fork(self, other: Fact) -> bool:
        """Whether the two are kept apart in one and the same activation of a function."""
        mine, its = self.split, other.split
        if mine is None or its is None or mine.depth != its.depth:
            return False
        return self.chain[: mine.depth] == other.chain[: its.depth]

    @property
    def in_epoch_loop(self) -> bool:
        """Whether a counting loop that runs more than once lies around it."""
        return any(loop.counts and not loop.once for loop in self.loops)
