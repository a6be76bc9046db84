"""What ranks did with each batch of their loaders: forwards, backwards, steps."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from validate_ddp.record.run import Run, Site, once
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

Work = protocol.Forward | protocol.InnerForward | protocol.Backward | protocol.Step
Rows = dict[int, tuple[int, ...]]
"""By index, digests of a sample."""


class Batch:
    """One batch, and what followed until the next one: forwards, backwards and steps."""

    __slots__ = ("event", "followed")

    def __init__(self, event: protocol.Batch) -> None:
        self.event = event
        self.followed: list[Work] = []

    @property
    def forwards(self) -> list[protocol.Forward | protocol.InnerForward]:
        """Of the wrapper, and of the module in it."""
        return [event for event in self.followed if isinstance(event, protocol.Forward | protocol.InnerForward)]

    @property
    def backwards(self) -> list[protocol.Backward]:
        """All backwards."""
        return [event for event in self.followed if isinstance(event, protocol.Backward)]

    @property
    def steps(self) -> list[protocol.Step]:
        """Of all optimizers."""
        return [event for event in self.followed if isinstance(event, protocol.Step)]


class Turn:
    """One iteration over a loader. exhausted: whether it ran out, or was cut by ``--max-steps``; None where it was left
    before. joined: whether it began within ``Join``, which lets ranks run out of batches one after the other. samplers:
    the loader's when it began, the outermost first."""

    def __init__(self, loader: int, number: int, site: Site) -> None:
        self.loader = loader
        self.number = number
        self.site = site
        self.batches: list[Batch] = []
        self.exhausted: bool | None = None
        self.joined = False
        self.samplers: Sequence[protocol.Sampling] = ()

    def of(self, batches: list[Batch]) -> Turn:
        """The same with these of its batches alone."""
        turn = Turn(self.loader, self.number, self.site)
        turn.exhausted, turn.joined, turn.samplers = self.exhausted, self.joined, self.samplers
        turn.batches = batches
        return turn

    @property
    def trains(self) -> bool:
        """Whether gradients are made of its batches."""
        return any(batch.backwards for batch in self.batches)

    @property
    def indices(self) -> list[Sequence[int]]:
        """Indices by batch; empty lists where they are not known."""
        return [batch.event.indices or [] for batch in self.batches]


_TELLING = (
    protocol.Forward, protocol.InnerForward, protocol.Backward, protocol.Step, protocol.Join, protocol.Iteration,
    protocol.Batch, protocol.Iterated,
)  # fmt: skip


@once
def turns(run: Run, rank: int) -> list[Turn]:
    """The iterations of one rank, in the order in which they began.

    What happens is that of the batch taken last; of several, where the script takes one of each of several loaders
    before it does anything. After a loop within a loop it is the outer one's again.
    """
    found: dict[tuple[int, int], Turn] = {}
    unfinished = _Unfinished()
    current: list[Turn] = []
    fresh = True
    joined = 0
    for event in run.of(rank, *_TELLING):
        match event:
            case protocol.Forward() | protocol.InnerForward() | protocol.Backward() | protocol.Step():
                fresh = True
                for turn in current:
                    turn.batches[-1].followed.append(event)
            case protocol.Join():
                joined += 1 if event.entered else -1
            case protocol.Iteration():
                # One that begins anew has done with what it took before, be it a look at the first batch.
                unfinished.remove(event.loader)
                current = [turn for turn in current if turn.loader != event.loader]
                turn = found[event.loader, event.turn] = Turn(event.loader, event.turn, event.site)
                turn.joined, turn.samplers = joined > 0, event.samplers
                unfinished.of[turn.loader] = turn
            case protocol.Batch():
                taken = found.get((event.loader, event.turn))
                if taken is not None:
                    taken.batches.append(Batch(event))
                    current = [taken] if fresh or taken in current else [*current, taken]
                    fresh = False
            case protocol.Iterated():
                ended = found.get((event.loader, event.turn))
                if ended is not None:
                    ended.exhausted = event.exhausted
                    if unfinished.of.get(ended.loader) is ended:
                        unfinished.remove(ended.loader)
                    current = [turn for turn in current if turn is not ended]
                    current = current or unfinished.last()
                    if not current and ended.trains:
                        current = [ended]  # a loader that fetches ahead ends before its last batch is trained on
    return list(found.values())


class _Unfinished:
    """The iterations that have begun and not ended, by loader: one of each, in the order in which they began."""

    def __init__(self) -> None:
        self.of: dict[int, Turn] = {}

    def remove(self, loader: int) -> None:
        """It has ended, or has begun anew."""
        self.of.pop(loader, None)

    def last(self) -> list[Turn]:
        """The last one that batches were taken of."""
        return next(([turn] for turn in reversed(self.of.values()) if turn.batches), [])


@once
def consumed_turns(run: Run, rank: int) -> list[Turn]:
    """Iterations over loaders from which the rank learns: all those of a loader that it ever does."""
    every = turns(run, rank)
    loaders = {turn.loader for turn in every if turn.trains}
    return [turn for turn in every if turn.loader in loaders]


@once
def training_turns(run: Run, rank: int) -> list[Turn]:
    """Iterations in which the rank learns: neither a look at the first batch nor an evaluation of the training data."""
    return [turn for turn in turns(run, rank) if turn.trains]


def training_turn(run: Run, rank: int, loader: int, number: int) -> Turn | None:
    """The iteration of that number over a loader, where the rank learns in it."""
    return _numbered(run, rank).get((loader, number))


@once
def _numbered(run: Run, rank: int) -> dict[tuple[int, int], Turn]:
    return {(turn.loader, turn.number): turn for turn in training_turns(run, rank)}


def contents(turn: Turn) -> Rows:
    """By index, the digests of that sample's rows; none for batches of which they are not known."""
    rows: Rows = {}
    for batch in turn.batches:
        indices, digests = batch.event.indices or [], batch.event.rows or []
        fitting = [column for column in digests if len(column) == len(indices)]
        for at, index in enumerate(indices):
            rows[index] = tuple(column[at] for column in fitting)
    return rows


def shared(mine: Rows, theirs: Rows) -> tuple[int, float]:
    """How many samples both have, which of those that one has; 0 where equal indices mean different contents."""
    common = [index for index in mine if index in theirs and mine[index]]
    if not common:
        return 0, 0.0
    width = min(min(len(mine[index]), len(theirs[index])) for index in common)
    # Augmented images differ, their labels do not; shares of the data that are cut by rank differ in everything.
    for column in range(width):
        equal = all(mine[index][column] == theirs[index][column] for index in common)
        if equal and (len({mine[index][column] for index in common}) > 1 or len(common) == 1):
            return len(common), len(common) / max(1, min(len(mine), len(theirs)))
    return 0, 0.0


def rows_per_step(run: Run, rank: int) -> dict[int, tuple[int, int]]:
    """By loader that a rank learns from: rows that it reads for one optimizer step, and in how many batches; those of
    most steps. Without loaders of which rows are not known."""
    seen: dict[int, Counter[tuple[int, int]]] = {}
    for turn in training_turns(run, rank):
        loader = loader_of(run, rank, turn.loader)
        batches = turn.batches[:-1] if turn.exhausted is False else turn.batches  # where it was cut a step may be, too
        rows, count = 0, 0
        for batch in batches:
            size = batch.event.size
            if not size or loader is None or (loader.batch_size is None and not batch.event.indices):
                break
            rows, count = rows + size, count + 1
            if batch.steps:
                seen.setdefault(turn.loader, Counter())[rows, count] += 1
                rows, count = 0, 0
    return {number: max(steps, key=lambda each: (steps[each], each)) for number, steps in seen.items()}


class Reshuffle(NamedTuple):
    """Two iterations of a rank, one after the other, over a loader with a DistributedSampler."""

    rank: int
    sampler: protocol.Sampler
    epoch: int
    """Of the first of them, from 0."""
    before: list[int]
    """Indices, as far as both iterations went."""
    after: list[int]
    site: Site
    """Of the second iteration."""


def reshuffles(run: Run) -> Iterator[Reshuffle]:
    """Iterations in which ranks learn, each with the next one over its loader, of another epoch."""
    for rank in run.ranks:
        by_loader: dict[int, list[Turn]] = {}
        for turn in training_turns(run, rank):
            by_loader.setdefault(turn.loader, []).append(turn)
        for number, same in by_loader.items():
            loader = loader_of(run, rank, number)
            sampler = sampler_of(run, rank, loader) if loader else None
            if sampler is None:
                continue
            for epoch, (one, two) in enumerate(pairwise(same)):
                if _taken_up(run, rank, sampler, one, two):
                    continue
                count = min(len(one.batches), len(two.batches))
                before, after = (list(chain(*turn.indices[:count])) for turn in (one, two))
                yield Reshuffle(rank, sampler, epoch, before, after, two.site)


def _taken_up(run: Run, rank: int, sampler: protocol.Sampler, one: Turn, two: Turn) -> bool:
    """Whether the second is the rest of the first's epoch, which ``--max-steps`` had cut, to a script that counts the
    batches itself: it sets its epochs, and has set none in between."""
    if not run.plan.get("max_steps"):
        return False
    epochs, turns_then = _epochs_set(run, rank, sampler.sampler, one.loader)
    between = bisect_left(turns_then, two.number) > bisect_left(turns_then, one.number)
    return epochs > 1 and not between


@once
def _epochs_set(run: Run, rank: int, sampler: int, loader: int) -> tuple[int, list[int]]:
    """How many epochs a sampler was given, and the number of the loader's iteration at each ``set_epoch``, sorted."""
    epochs, during = set(), []
    turn = None
    for event in run.of(rank, protocol.Iteration, protocol.SetEpoch):
        if isinstance(event, protocol.Iteration):
            turn = event.turn if event.loader == loader else turn
        elif event.sampler == sampler:
            epochs.add(event.epoch)
            if turn is not None:
                during.append(turn)
    return len(epochs), sorted(during)


def loader_of(run: Run, rank: int, number: int) -> protocol.Loader | None:
    """The event of a loader's construction."""
    return _loaders(run, rank).get(number)


def sampler_of(run: Run, rank: int, loader: protocol.Loader) -> protocol.Sampler | None:
    """The event of the construction of a loader's DistributedSampler."""
    return None if loader.numbered is None else _samplers(run, rank).get(loader.numbered)


@once
def _loaders(run: Run, rank: int) -> dict[int, protocol.Loader]:
    """The first one of each number."""
    return {event.loader: event for event in reversed(run.of(rank, protocol.Loader))}


@once
def _samplers(run: Run, rank: int) -> dict[int, protocol.Sampler]:
    """The first one of each number."""
    return {event.sampler: event for event in reversed(run.of(rank, protocol.Sampler))}
