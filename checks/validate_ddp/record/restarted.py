"""In what a restarted run differs from the whole one, each kind by itself: differences, with rank, step and cause."""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING
from validate_ddp.record.restart import (
    AVERAGES,
    COUNTERS,
    RANDOM,
    RATES,
    SAMPLES,
    STATE,
    WEIGHTS,
    Moment,
    Runs,
    Seen,
    Unclear,
    Wrong,
    aligned,
    draws,
    firsts,
    learned_alike,
    lies_in,
    loads,
    moments,
    names_in_short,
    sides,
    written,
)
from validate_ddp.record.restarted_counts import counters
from validate_ddp.record.restarted_samples import samples
from validate_ddp.record.restarted_told import Comparison, difference
from validate_ddp.record.restarted_updates import is_own, updates
from validate_ddp.record.run import Run
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol


def compared(runs: Runs) -> protocol.Restart:
    """The event of the command."""
    first = moments(runs.resumed, runs.resumed.ranks[0])[0]
    base, others = aligned(runs)
    if base is None:
        new = Comparison(runs)
        new.take(WEIGHTS, nothing(runs, first))
        return new.event(0)
    runs = runs._replace(base=base)
    found = Comparison(runs)
    found.take(WEIGHTS, _weights(runs, others))
    found.take(STATE, _state(runs))
    found.take(SAMPLES, samples(runs))
    found.take(RATES, _rates(runs, not found.has(STATE)))
    found.take(RANDOM, _random(runs))
    found.take(AVERAGES, _averages(runs))
    if not found.has(SAMPLES, RATES):  # which may be by what is counted
        found.take(COUNTERS, counters(runs, clean=found.clean))
    if found.clean:
        found.take(STATE if is_own(runs) else COUNTERS, updates(runs))
    event = found.event(base)
    event.sides = list(sides(runs, not found.clean))
    return event


def nothing(runs: Runs, first: Moment) -> Seen:
    """The restarted run begins from weights that the first one has had after none of its saves."""
    rank = runs.whole.ranks[0]
    begin = moments(runs.whole, rank)[0].held("parameters")
    if not loads(runs, written(runs.stopped)):
        yield Wrong(
            ERROR, rank, runs.at + 1, "the restarted run loads nothing of what was saved: it begins from new weights"
        )
    elif begin and begin == first.held("parameters"):
        yield Wrong(
            ERROR,
            rank,
            runs.at + 1,
            "a checkpoint is read, and the restarted run begins from the first run's first weights",
        )
    elif runs.same_size:
        kept = {number for _, event in runs.stopped.each(protocol.Kept) for number in event.numbers}
        if first.held("parameters") and set(first.held("parameters").values()) <= kept:
            text = "the restarted run trains on other weights than the first one did, which lie in what was saved too"
            yield Wrong(ERROR, rank, runs.at + 1, text + ": a moving average, or those of another step")
        else:
            yield Wrong(
                WARNING, rank, runs.at + 1,
                "the restarted run begins from weights that the first one has had after none of its steps",
            )  # fmt: skip
    else:
        yield Unclear("the parameters are not those of the first run on another number of ranks")


def _weights(runs: Runs, others: list[str]) -> Seen:
    if others:
        text = f"{names_in_short(others)} of the model {'is' if len(others) == 1 else 'are'} not as saved"
        yield Wrong(ERROR, runs.whole.ranks[0], runs.base + 1, text)
        return
    yield None
    for rank, mine, theirs in firsts(runs) if runs.same_size else ():
        one, two = mine.held("buffers"), theirs.held("buffers")
        wrong = [name for name in one if name in two and one[name] != two[name]]
        if wrong:
            text = f"rank {rank}: the buffers {names_in_short(wrong)} are not as they were when they were saved"
            if rank != 0 and all(
                two[name] == moments(runs.whole, 0)[runs.base].held("buffers").get(name) for name in wrong
            ):
                continue  # those of rank 0 for all, as DistributedDataParallel itself has them at its next forward
            yield Wrong(ERROR, rank, runs.base + 1, text)
            return


def _state(runs: Runs) -> Seen:
    aspect = "state" if runs.same_size else "whole_state"
    for rank, mine, theirs in firsts(runs)[: None if runs.same_size else 1]:
        if not runs.same_size:
            mine = runs.until(rank)[runs.at]
        one, two = mine.held(aspect), theirs.held(aspect)
        if not one:
            continue
        missing = [name for name in one if name not in two]
        wrong = [name for name in one if name in two and one[name] != two[name]]
        if len(missing) == len(one):
            yield Wrong(
                ERROR, rank, runs.base + 1, f"rank {rank}: the optimizer begins without the state that it had "
                f"({names_in_short(missing, 2)})",
            )  # fmt: skip
            return
        if missing or wrong:
            swapped = wrong and all(two[name] in one.values() for name in wrong if "step" not in name)
            how = ", but that of other parameters" if swapped else ""
            yield Wrong(
                ERROR, rank, runs.base + 1,
                f"rank {rank}: the optimizer's state of {names_in_short(missing or wrong, 2)} is not what it was{how}",
            )  # fmt: skip
            return
        yield None


def _rates(runs: Runs, with_state: bool) -> Seen:
    """with_state: the optimizer has its state, of which its rates are a part."""
    if not runs.same_size or not with_state:
        yield Unclear("learning rates, " + ("without the optimizer's state" if runs.same_size else "on other ranks"))
        return
    for rank, *_ in firsts(runs)[:1]:
        for number, (mine, theirs) in enumerate(zip(*runs.of(rank), strict=False)):
            one = dict(zip(mine.event.rate_names, mine.event.rates, strict=False))
            two = dict(zip(theirs.event.rate_names, theirs.event.rates, strict=False))
            for name in one:
                if name in two and abs(one[name] - two[name]) > 1e-9 * abs(one[name]):
                    if _by_loss(runs) and not learned_alike(runs, rank, runs.base + number):
                        yield Unclear("learning rates by the loss, which differs")
                        return
                    word = name.replace("lr", "learning rate", 1) if name.startswith("lr") else name
                    text = f"step {runs.base + number + 1} has the {word} {two[name]:.6g}"
                    text += f", where the whole run has {one[name]:.6g}"
                    again = _rate_before(runs, rank, name, two[name])
                    yield Wrong(ERROR, rank, runs.base + number + 1, text + again)
                    return
        yield None


def _by_loss(runs: Runs) -> bool:
    """Whether a schedule hangs on a metric."""
    return any(event.kind == "ReduceLROnPlateau" for _, event in runs.whole.each(protocol.Schedule))


def _rate_before(runs: Runs, rank: int, name: str, value: float) -> str:
    every = [dict(zip(m.event.rate_names, m.event.rates, strict=False)).get(name) for m in moments(runs.whole, rank)]
    if every and every[0] is not None and abs(every[0] - value) <= 1e-9 * abs(value) and runs.base:
        return ": that of its first step, so the schedule begins again"
    return ""


def _random(runs: Runs) -> Seen:
    if not runs.same_size:
        return
    yield from of_another_rank(runs.stopped, runs.resumed, runs.base)
    saves = [event for _, event in runs.stopped.each(protocol.Randomness) if not event.is_set]
    sets = [event for _, event in runs.resumed.each(protocol.Randomness) if event.is_set]
    for generator in ("torch", "numpy", "python"):
        kept = any(event.generator == generator and event.after <= runs.at for event in saves)
        if any(event.generator == generator for event in sets):
            continue  # what was set was looked at; a loader's own draws may have come since
        for rank, mine, theirs in firsts(runs):
            one, two = mine.held("random").get(generator), theirs.held("random").get(generator)
            if one is None or not draws(runs, rank, generator):
                continue
            if one == two:
                yield None
                continue
            before = [m.held("random").get(generator) for m in moments(runs.whole, rank)[: runs.base]]
            again = f": the draws of step {before.index(two) + 1} are drawn again" if two in before else ""
            why = "which is saved, and never set" if kept else "which is not saved"
            yield Wrong(
                WARNING if kept else INFO, rank, runs.base + 1,
                f"rank {rank}: the random state of {generator}, {why}, is not what it was{again}",
            )  # fmt: skip
            break


def of_another_rank(stopped: Run, resumed: Run, base: int | None) -> Seen:
    """Random states that are set to those of other ranks, which had others. base: the steps that the second run goes on
    after; None where it is one with the first, and a state counts that is set after what it has saved was read."""
    owners: dict[int, set[int]] = {}
    for rank, event in stopped.each(protocol.Randomness):
        if event.digest is not None and not event.is_set:
            owners.setdefault(event.digest, set()).add(rank)
    for rank in stopped.ranks:
        for moment in moments(stopped, rank):
            for digest in moment.held("random").values():
                owners.setdefault(digest, set()).add(rank)
    told = set()
    for rank, event in _set(resumed, written(stopped) if base is None else None):
        known = owners.get(event.digest or 0)
        if not known:
            continue
        if rank in known:
            yield None
        elif event.generator not in told:
            told.add(event.generator)
            yield Wrong(
                ERROR, rank, (event.after if base is None else base) + 1,
                f"rank {rank}: the random state of {event.generator} is set to that of rank {min(known)}: "
                f"from now on both draw the same",
            )  # fmt: skip


def _set(run: Run, paths: set[str] | None) -> Iterator[tuple[int, protocol.Randomness]]:
    """The random states that ranks set. paths: only after they have read one of these, or what lies under it."""
    for rank in run.ranks:
        read = paths is None
        for event in run.of(rank, protocol.Read, protocol.Randomness):
            if isinstance(event, protocol.Read):
                read = read or lies_in(event.path, paths or ())
            elif read and event.is_set:
                yield rank, event


def gone(runs: Runs, folder: str) -> protocol.Restart | None:
    """Where all that was saved lies in a temporary folder of that run's own, no restart finds it; but a run that trains
    in legs goes on from it by itself. folder: for temporary files."""
    saved = [event for _, event in runs.stopped.each(protocol.Kept) if event.path]
    passing = bool(saved) and all(lies_in(event.path or "", (folder,)) for event in saved)
    if not passing or loads(runs, written(runs.stopped)):
        return None
    why = "what is saved lies in a temporary folder of each run's own: give the script a folder"
    event = protocol.Restart(compared=False, why=why)
    for each in of_another_rank(runs.whole, runs.whole, None):
        if isinstance(each, Wrong):
            event.differences = [difference(each, RANDOM, saved[-1].site.own, None)]
            break
    return event


def _averages(runs: Runs) -> Seen:
    """Each as it was when the run was ended has to be met again, before it is first changed as averages are."""
    if runs.base != runs.at:
        return
    for rank, *_ in firsts(runs)[: None if runs.same_size else 1]:
        one = runs.until(rank)[runs.at].held("averages")
        resumed = moments(runs.resumed, rank)
        known = next((at for at, each in enumerate(resumed) if each.held("averages")), None)
        if not one or known is None:
            continue
        met = {digest for each in resumed[: known + 1] for digest in each.held("averages_before").values()}
        wrong = [name for name in one if one[name] not in met]
        if wrong:
            mine = set(resumed[0].held("parameters").values())
            again = ": it begins again from the weights" if mine and mine <= met else ""
            text = (
                f"rank {rank}: {len(wrong)} of {len(one)} tensors of the moving average are not what they were{again}"
            )
            yield Wrong(ERROR, rank, runs.base + 1, text)
            return
        yield None
