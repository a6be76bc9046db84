"""A restarted run beside what the run before it has saved at its end, where no longer run is there to compare with.

What the next step of a run would have been made from is not known then. Known is what was saved, what the optimizer
had, and how far an epoch was when the run ended; of these the restarted run has to show that it goes on from them.
"""

from __future__ import annotations

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.record.restart import (
    RANDOM,
    SAMPLES,
    STATE,
    WEIGHTS,
    Moment,
    Runs,
    Seen,
    Unclear,
    Wrong,
    loads,
    moments,
    names_in_short,
    written,
)
from validate_ddp.record.restarted import nothing, of_another_rank
from validate_ddp.record.restarted_told import Comparison
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol


def compared_with_saved(runs: Runs, why: str) -> protocol.Restart:
    """The event of the command. runs: the first two are one. why: no longer run is there."""
    found = Comparison(runs)
    found.take(WEIGHTS, _weights(runs))
    loaded = not found.has(WEIGHTS)
    if loaded:
        found.take(STATE, _state(runs))
        found.take(SAMPLES, _samples(runs))
        found.take(RANDOM, of_another_rank(runs.stopped, runs.resumed, runs.at))
    found.unclear.append(f"the steps with those of a longer run: {why}")
    return found.event(runs.at if loaded else 0)


def _ends(runs: Runs, rank: int) -> tuple[Moment, Moment, Moment]:
    """The first and last step of the run before, and the first one of the restarted run."""
    before = moments(runs.whole, rank)
    return before[0], before[-1], moments(runs.resumed, rank)[0]


def _weights(runs: Runs) -> Seen:
    """What was trained is to be what was saved."""
    kept = {
        number for _, event in runs.stopped.each(protocol.Kept) if event.after == runs.at for number in event.numbers
    }
    rank = runs.whole.ranks[0]
    first, last, again = (each.held("parameters") for each in _ends(runs, rank))
    moved = [name for name in again if first.get(name) != last.get(name)]
    lost = [name for name in moved if again[name] not in kept]
    begun = [name for name in lost if again[name] == first.get(name)]
    if not moved or not loads(runs, written(runs.stopped)) or len(begun) == len(moved):
        yield from nothing(runs, _ends(runs, rank)[2])
    elif begun:
        some = f"{names_in_short(begun)} of the model, {len(begun)} of {len(moved)} parameters,"
        yield Wrong(ERROR, rank, runs.at + 1, f"{some} begin as they began in the run before, and not as saved")
    elif lost:
        yield Unclear(f"{names_in_short(lost)} with what was saved, in which there is no such tensor")
    else:
        yield None


def _state(runs: Runs) -> Seen:
    """An optimizer that had a state is to have one, of as many parameters."""
    for rank in runs.resumed.ranks:
        _, last, again = (each.held("state") for each in _ends(runs, rank))
        missing = [name for name in last if name not in again]
        if missing:
            text = f"rank {rank}: the optimizer begins without {len(missing)} of the {len(last)} entries of the state "
            yield Wrong(ERROR, rank, runs.at + 1, f"{text}that it had ({names_in_short(missing, 2)})")
            return
        if last:
            yield None


def _samples(runs: Runs) -> Seen:
    """The first batch of the restarted run is none of the epoch that the run before has left before its end."""
    for rank in runs.resumed.ranks:
        _, last, again = _ends(runs, rank)
        if not last.event.turns or not again.fed or _is_over(runs, rank, last.event.turns[-1]):
            yield Unclear("samples: the run before ends with an epoch, or no loader was seen")
            return
        every = moments(runs.whole, rank)
        turn = last.event.turns[-1]
        met = [at for at, each in enumerate(every) if each.fed == again.fed and turn in each.event.turns]
        if met:
            text = (
                f"rank {rank}: the restarted run first learns from what step {met[0] + 1} of {len(every)} did, in an "
            )
            text += f"epoch that was not over: {len(every) - met[0]} steps of data are repeated"
            yield Wrong(WARNING, rank, runs.at + 1, text)
            return
        yield None


def _is_over(runs: Runs, rank: int, number: int) -> bool:
    """Whether an iteration over a loader has given all of its batches. number: as of ``Moment.turns``."""
    loader, turn = number >> 20, number & ((1 << 20) - 1)
    taken = sum(each.loader == loader and each.turn == turn for each in runs.whole.of(rank, protocol.Batch))
    made = next((each for each in runs.whole.of(rank, protocol.Loader) if each.loader == loader), None)
    return made is None or made.batches is None or taken >= made.batches
