"""Places where a run has looked at what a static finding is about, and has shown that nothing is wrong there.

Each is the exact line at which the object was made or the call was done. A place at which anything else was seen too,
or which only some ranks came to, is no such place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain

from validate_ddp.rehearse.iterations import loader_of, reshuffles, training_turn, training_turns
from validate_ddp.rehearse.log import Event
from validate_ddp.rehearse.pace import OutOfTime
from validate_ddp.rehearse.run import Run, Site, once
from validate_ddp.rehearse.script import conditional
from validate_ddp.rehearse.sequences import partings
from validate_ddp.rehearse.updates import agree, common_steps, updates, wrapped_steps
from validate_ddp.rehearse.verdict import Verdict
from validate_ddp.rehearse.writers import writers

Line = tuple[str, int]
"""Path and line."""
Looks = Iterator[tuple[Line, bool]]
"""Places, and whether all was well at that sight of them."""


def cleared(run: Run, code: str, verdicts: dict[str, Verdict]) -> set[Line]:
    """The places at which a static finding of that code is contradicted by the run.

    Empty where not all ranks have reported, where there is one rank only, and for rules of which a run shows too
    little.
    """
    look = _LOOKS.get(code)
    if look is None or run.world_size < 2 or len(run.ranks) != run.world_size:
        return set()
    verdict = verdicts.get(code)
    if code in _NEED_OTHER_SAMPLES and not _samples_differ(verdicts):
        return set()
    try:
        with run.bounded():
            seen = _seen(run, look)
    except OutOfTime:
        return set()
    wrong = {place for place, well in seen if not well}
    if verdict is not None:
        wrong |= {finding.site.place for finding in verdict.findings}
    return {place for place, _ in seen} - wrong


@once
def _seen(run: Run, look: Callable[[Run], Looks]) -> list[tuple[Line, bool]]:
    return list(look(run))


_NEED_OTHER_SAMPLES = {"DDP301", "DDP303"}
"""On equal samples gradients are equal, whether anything reduces them or not."""


def _samples_differ(verdicts: dict[str, Verdict]) -> bool:
    return any(code in verdicts and verdicts[code].word == "held" for code in ("DDP202", "DDP206"))


def _groups_destroyed(run: Run) -> Looks:
    if run.outcome != "finished":
        return
    for rank in run.ranks:
        exits = run.of(rank, "exit")
        for event in exits or run.of(rank, "group"):
            yield event["site"].place, bool(exits) and not event["initialized"] and not run.of(rank, "exception")


def _own_device(run: Run) -> Looks:
    for rank, event in run.each("device"):
        if rank != run.local_rank(rank):
            yield event["site"].place, event["index"] == run.local_rank(rank)


def _own_rank(run: Run) -> Looks:
    for rank, event in run.each("joining", "sampler"):
        if rank != run.local_rank(rank) and event.get("rank") is not None:
            yield event["site"].place, event["rank"] == rank


def _reshuffled(run: Run) -> Looks:
    for each in reshuffles(run):
        if each.before and each.after:
            yield each.sampler["site"].place, each.before != each.after


def _shared_out(run: Run) -> Looks:
    """Whole iterations over one loader in which no sample is read by two ranks."""
    first = run.ranks[0]
    for turn in training_turns(run, first):
        loader = loader_of(run, first, turn.loader)
        if loader is None or loader["iterable"]:
            continue
        found = (training_turn(run, rank, turn.loader, turn.number) for rank in run.ranks[1:])
        peers = [peer for peer in found if peer is not None]
        counts = Counter(index for each in (turn, *peers) for index in set(chain(*each.indices)))
        if len(peers) == len(run.ranks) - 1 and all(any(each.indices) for each in (turn, *peers)):
            # A sampler without drop_last repeats a few samples, so that all ranks get equally many.
            yield loader["site"].place, sum(count > 1 for count in counts.values()) < run.world_size


def _reduced_elsewhere(run: Run) -> Looks:
    """Forwards round the wrapper whose gradients are equal on all ranks all the same: averaged by hand."""
    for number, count, update in wrapped_steps(run):
        if update.backwards and not update.forwards:
            for call in update.bypasses:
                yield call["site"].place, agree(run, number, count, "grads", wrapped=True)


def _kept_equal(run: Run) -> Looks:
    """Optimizers of parameters under no wrapper whose gradients are equal on all ranks at every step."""
    for optimizer in run.of(run.ranks[0], "optimizer"):
        number = optimizer["optimizer"]
        for count in range(1, common_steps(run, number) + 1):
            equal = [agree(run, number, count, what, wrapped=False) for what in ("grads", "params")]
            yield optimizer["site"].place, all(equal)


def _reduced_once(run: Run) -> Looks:
    """Places whose backward runs several times before a step, and reduces at most once."""
    for steps in updates(run, run.ranks[0]).values():
        for update in steps:
            places = Counter(each["site"].place for each in update.backwards)
            armed = Counter(each["site"].place for each in update.backwards if each["armed"])
            for place, count in places.items():
                if count > 1:
                    yield place, armed[place] <= 1


def _nothing_dropped(run: Run) -> Looks:
    """Calls of zero_grad in a run that accumulates: those that found nothing which a later step wanted."""
    rank = run.ranks[0]
    steps = [update for each in updates(run, rank).values() for update in each]
    if not any(len(update.backwards) > 1 for update in steps):
        return
    dropped = {event["site"].place for update in steps for event, _ in update.dropped}
    for event in run.of(rank, "zero_grad"):
        yield event["site"].place, event["site"].place not in dropped


def _not_nested(run: Run) -> Looks:
    for _, event in run.each("ddp"):
        yield event["site"].place, not event["nested"]


def _met(*kinds: str) -> Callable[[Run], Looks]:
    """Calls that every rank makes equally often, from the same lines, in a run that came to its end."""

    def look(run: Run) -> Looks:
        if run.outcome != "finished" or partings(run):
            return
        counts = {rank: Counter(_lines(event) for event in run.of(rank, *kinds)) for rank in run.ranks}
        for call in {call for each in counts.values() for call in each if call}:
            yield call[0], len({each[call] for each in counts.values()}) == 1

    return look


def _lines(event: Event) -> tuple[Line, ...]:
    site: Site = event["site"]
    return tuple((frame.path, frame.line) for frame in site.frames if not frame.library)


def _not_wrapped(run: Run) -> Looks:
    for _, event in run.each("save"):
        if event["tensors"]:
            yield event["site"].place, not event["wrapped"]


def _one_writer(run: Run) -> Looks:
    """Writes of a path that is no other rank's, by the end of the run.

    That one rank came to a line is no proof, as a metric of its own may have led it there: either all ranks wrote
    there, each its own path, or the line lies under a condition on the rank.
    """
    if run.outcome != "finished":
        return
    written = writers(run)
    at: dict[Line, set[int]] = {}
    for events in written.values():
        for rank, event in events:
            at.setdefault(event["site"].place, set()).add(rank)
    for events in written.values():
        for _, event in events:
            place = event["site"].place
            if len(at[place]) == len(run.ranks) or conditional(event["site"]) is not None:
                yield place, len({rank for rank, _ in events}) == 1


def _one_writer_of_all_nodes(run: Run) -> Looks:
    if int(run.plan.get("nnodes", 1)) > 1:
        yield from _one_writer(run)


def _as_long_as_the_run(run: Run) -> Looks:
    """Schedules that end where the run does."""
    if run.truncated or run.outcome != "finished":
        return
    rank = run.ranks[0]
    counts = Counter(event["schedule"] for event in run.of(rank, "scheduled"))
    for schedule in run.of(rank, "schedule"):
        taken = counts[schedule["schedule"]]
        if taken:
            yield schedule["site"].place, abs(schedule["steps"] / taken - 1) < 0.06


_LOOKS: dict[str, Callable[[Run], Looks]] = {
    "DDP101": _groups_destroyed,
    "DDP103": _own_device,
    "DDP104": _own_rank,
    "DDP201": _reshuffled,
    "DDP202": _shared_out,
    "DDP301": _reduced_elsewhere,
    "DDP303": _kept_equal,
    "DDP304": _reduced_once,
    "DDP306": _nothing_dropped,
    "DDP312": _not_nested,
    "DDP401": _met("collective"),
    "DDP402": _met("forward"),
    "DDP403": _met("collective"),
    "DDP501": _not_wrapped,
    "DDP502": _one_writer,
    "DDP503": _one_writer_of_all_nodes,
    "DDP506": _met("collective"),
    "DDP602": _as_long_as_the_run,
}
"""What a run can clear. Of the other rules it shows that something is wrong, never that nothing is."""
