"""Evaluations: iterations from which ranks do not learn, and what they tell each other of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from validate_ddp.record.iterations import Turn, loader_of, sampler_of, turns
from validate_ddp.record.run import Run, once
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

Calls = list[protocol.Collective | protocol.Done]
COMBINING = ("all_reduce", "reduce", "all_gather", "gather", "all_to_all", "send", "recv", "batch_isend_irecv")
"""How the names of collectives begin that bring together what ranks have; a barrier and a broadcast do not."""


class Evaluation(NamedTuple):
    """One rank's iteration over a loader that it never trains on.

    loader, sampler: their construction, the latter where it is a DistributedSampler. calls: the collectives of the
    rank, and their ends; span: the part of them from its beginning until training goes on.
    """

    rank: int
    turn: Turn
    loader: protocol.Loader
    sampler: protocol.Sampler | None
    calls: Calls
    span: tuple[int, int]

    @property
    def following(self) -> Calls:
        """What was called from its beginning until training goes on. Made when it is asked for: those of many
        evaluations at the end of a run are long."""
        return self.calls[slice(*self.span)]

    @property
    def size(self) -> int:
        """Samples that the rank was given."""
        return sum(batch.event.size or 0 for batch in self.turn.batches)

    @property
    def samples(self) -> list[int]:
        """Their indices, as far as they are known; of a subset, those in the data set that it is part of."""
        events = [batch.event for batch in self.turn.batches]
        return [index for event in events for index in event.whole or event.indices or []]

    @property
    def length(self) -> int | None:
        """Samples of the data set that the ranks share."""
        return self.loader.whole or self.loader.length

    @property
    def combined(self) -> bool:
        """Whether something that may be of this evaluation went from rank to rank."""
        return any(isinstance(each, protocol.Collective) and each.op.startswith(COMBINING) for each in self.following)


def evaluations(run: Run) -> Iterator[list[Evaluation]]:
    """Evaluations that every rank has come to the end of, each as a list by rank; of runs that train too."""
    for each in _found(run):
        run.look()
        yield each


@once
def _found(run: Run) -> list[list[Evaluation]]:
    if run.world_size < 2 or len(run.ranks) < run.world_size:
        return []
    found = [{(each.turn.loader, each.turn.number): each for each in _of_rank(run, rank)} for rank in run.ranks]
    return [[of_rank[key] for of_rank in found] for key in found[0] if all(key in of_rank for of_rank in found)]


def _of_rank(run: Run, rank: int) -> Iterator[Evaluation]:
    every = turns(run, rank)
    training = {turn.loader for turn in every if turn.trains}
    if not training:
        return
    events = run.by_rank[rank]
    begins = {(at.loader, at.turn): place for place, at in enumerate(events) if isinstance(at, protocol.Iteration)}
    resumed = sorted(at for (loader, _), at in begins.items() if loader in training)
    calls: Calls = []
    told = []
    for at, event in enumerate(events):
        if isinstance(event, protocol.Collective | protocol.Done):
            calls.append(event)
            told.append(at)
    for turn in every:
        loader = loader_of(run, rank, turn.loader)
        if turn.loader in training or turn.exhausted is None or not turn.batches or loader is None:
            continue
        start = begins[turn.loader, turn.number]
        after = bisect_right(resumed, start)
        end = resumed[after] if after < len(resumed) else len(events)
        span = bisect_left(told, start), bisect_left(told, end)
        yield Evaluation(rank, turn, loader, sampler_of(run, rank, loader), calls, span)


def reduced(events: Calls) -> Iterator[tuple[protocol.Collective, Sequence[float], Sequence[float]]]:
    """Reductions of a few numbers by all ranks, each with what this rank gave and what all of them got."""
    got = {event.n: event.got for event in events if isinstance(event, protocol.Done) and event.got is not None}
    for event in events:
        if isinstance(event, protocol.Collective) and event.op == "all_reduce" and event.given and event.n in got:
            yield event, event.given, got[event.n]
