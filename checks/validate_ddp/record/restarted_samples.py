"""Which samples a restarted run learns from, beside those of the whole one: repeated, skipped, or each once."""

from __future__ import annotations

from collections import Counter

from validate_ddp.findings import ERROR
from validate_ddp.record.restart import Moment, Runs, Seen, Unclear, Wrong, firsts, moments


def samples(runs: Runs) -> Seen:
    """Batch by batch on as many ranks; over the epoch where the order is another, or the number of ranks."""
    if not runs.same_size:
        yield from _as_sets(runs)
        return
    for rank, *_ in firsts(runs):
        every, resumed = moments(runs.whole, rank), moments(runs.resumed, rank)
        other = next(
            (
                at
                for at, (mine, theirs) in enumerate(zip(every[runs.base :], resumed, strict=False))
                if not _alike(mine, theirs)
            ),
            None,
        )
        if other is None:
            yield None
            continue
        found = _position(every, runs.base + other, resumed[other])
        if found is not None:
            text = f"rank {rank}: step {runs.base + other + 1} learns from what step {found + 1} of the whole run did"
            yield Wrong(ERROR, rank, runs.base + other + 1, text + _cause(every, runs.base + other, found))
        elif resumed[other].event.samples == every[runs.base + other].event.samples and resumed[other].event.samples:
            yield Unclear(f"what is in the samples of rank {rank}, which differs although they are the same")
        elif (twin := _twin(runs, rank, other)) is not None:
            text = f"rank {rank}: step {runs.base + other + 1} learns from what rank {twin} learns from in it too"
            yield Wrong(ERROR, rank, runs.base + other + 1, text)
        elif other == 0:
            yield from _as_sets(runs)
        else:
            yield Unclear(f"the samples of rank {rank} from step {runs.base + other + 1} on, whose order is another")
        return


def _twin(runs: Runs, rank: int, other: int) -> int | None:
    """A rank that has the same batches in a step of the restarted run, and others in the whole one."""
    mine = [every[other].fed for every in runs.of(rank)]
    for each in runs.resumed.ranks:
        pair = runs.of(each)
        if each != rank and other < min(map(len, pair)):
            whole, resumed = (every[other].fed for every in pair)
            if resumed and resumed == mine[1] and whole != mine[0]:
                return each
    return None


def _alike(mine: Moment, theirs: Moment) -> bool:
    """Whether they are the same; of what holds samples that are drawn anew, as by augmentation, their numbers."""
    return mine.fed == theirs.fed or bool(mine.event.samples and mine.event.samples == theirs.event.samples)


def _position(every: list[Moment], at: int, theirs: Moment) -> int | None:
    """The step of the whole run that learned from the same: the last one up to here, else the first one after."""
    found = [number for number, mine in enumerate(every) if theirs.fed and _alike(mine, theirs)]
    return max((number for number in found if number < at), default=min(found, default=None))


def _cause(every: list[Moment], at: int, found: int) -> str:
    began = next((n for n in range(at, -1, -1) if _turn(every[n]) != _turn(every[at])), -1) + 1
    if found > at:
        return f": {found - at} steps of data are skipped"
    if found == 0 and began > 0:
        return ": the data begin again at the first epoch"
    if found == began and at > began:
        return ": the epoch begins again"
    former = _turn(every[found]) != _turn(every[at])
    return ": an epoch's order is drawn again" if former else f": {at - found} steps of data are repeated"


def _turn(moment: Moment) -> int | None:
    """The iteration over a loader that its first batch is of."""
    return next(iter(moment.event.turns), None)


def _of_turn(every: list[Moment], turn: int | None) -> Counter[int] | None:
    """How often each sample is learned from in an iteration; None where their numbers are not known."""
    found = Counter[int]()
    for each in every:
        at = 0
        for number, size in zip(each.event.turns, each.event.sizes, strict=True):
            if number == turn:
                if each.event.samples is None:
                    return None
                found.update(each.event.samples[at : at + size])
            at += size
    return found


def _as_sets(runs: Runs) -> Seen:
    """The samples of the epoch that the restart lies in, of all ranks together."""
    before, rest, after = Counter[int](), Counter[int](), Counter[int]()
    for rank in runs.whole.ranks:
        every = moments(runs.whole, rank)
        turn = _turn(every[runs.base]) if runs.base < len(every) else None
        if turn is None:
            yield Unclear("samples: no loader was seen")
            return
        parts = [(before, _of_turn(every[: runs.base], turn)), (rest, _of_turn(every[runs.base :], turn))]
        if not _added(parts):
            yield Unclear("samples: their numbers in the data set are not known")
            return
    for rank in runs.resumed.ranks:
        resumed = moments(runs.resumed, rank)
        if not _added([(after, _of_turn(resumed, _turn(resumed[0])))]):
            yield Unclear("samples: their numbers in the data set are not known")
            return
    whole = before + rest
    padding = sum(count - 1 for count in whole.values()) + max(len(runs.whole.ranks), len(runs.resumed.ranks))
    if not runs.same_size:  # the place in an epoch falls within a batch
        padding += sum(max(m[0].event.sizes, default=0) for m in (moments(runs.resumed, r) for r in runs.resumed.ranks))
    again = sum((after & before).values())
    missed = sum(1 for index in whole if index not in before and index not in after)
    rank, step = runs.resumed.ranks[0], runs.base + 1
    if again > padding:
        text = f"{again} of the {sum(before.values())} samples of the epoch before the restart are learned from again"
        yield Wrong(ERROR, rank, step, text)
    elif missed > padding and runs.whole.plan.get("max_steps"):
        yield Unclear("the samples of an epoch that --max-steps cuts short, whose order is another")
    elif missed > padding and _is_over(runs):
        yield Wrong(ERROR, rank, step, f"{missed} of {len(whole)} samples of the epoch are skipped")
    elif after:
        yield None


def _added(parts: list[tuple[Counter[int], Counter[int] | None]]) -> bool:
    """Adds the second of each to the first; whether all are known."""
    for whole, part in parts:
        if part is None:
            return False
        whole.update(part)
    return True


def _is_over(runs: Runs) -> bool:
    """Whether the restarted run has come past its first epoch."""
    every = moments(runs.resumed, runs.resumed.ranks[0])
    return runs.resumed.outcome == "finished" or _turn(every[0]) != _turn(every[-1])
