"""Steps of a restarted run that change parameters otherwise than the whole run's, though all that is seen is alike.

Of an optimizer that the script has written itself no state is seen: what it does tells whether it has been restored.
"""

from __future__ import annotations

from typing import NamedTuple

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.record.restart import Moment, Runs, Seen, Wrong, draws, firsts, lies_in, moments, names_in_short, own
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

NEAR = 1e-5
"""To what a loss is the same, relatively: sums in another order change less."""
_OWN = "the state of the script's own optimizer"


def updates(runs: Runs) -> Seen:
    """The first step after which parameters are others, and with them the loss of the next one."""
    if not runs.same_size:
        return
    for rank, *_ in firsts(runs):
        drawn = {name for name in ("torch", "numpy", "python") if draws(runs, rank, name)}
        whole, resumed = runs.of(rank)
        for at, (mine, theirs) in enumerate(zip(whole, resumed, strict=False)):
            if not _alike(mine, theirs, drawn) or list(mine.event.losses) != list(theirs.event.losses):
                break
            if at + 1 == min(len(whole), len(resumed)):
                break
            one, two = whole[at + 1], resumed[at + 1]
            before, after = one.held("parameters"), two.held("parameters")
            others = [name for name in before if name in after and before[name] != after[name]]
            if not others:
                yield None
                continue
            if _alike(one, two, drawn) and _is_apart(one, two):
                yield _told(runs, rank, runs.base + at + 1, others)
            return


def is_own(runs: Runs) -> bool:
    """Whether the steps are of no optimizer of torch's."""
    return all("state" not in mine.aspects for _, mine, _ in firsts(runs))


def _alike(mine: Moment, theirs: Moment, drawn: set[str]) -> bool:
    """Whether both learn from the same, with the same random numbers."""
    one, two = mine.held("random"), theirs.held("random")
    return bool(mine.fed) and mine.fed == theirs.fed and all(one.get(name) == two.get(name) for name in drawn)


def _is_apart(mine: Moment, theirs: Moment) -> bool:
    pairs = list(zip(mine.event.losses, theirs.event.losses, strict=False))
    return any(abs(one - two) > NEAR * abs(one) for one, two in pairs)


def _told(runs: Runs, rank: int, step: int, others: list[str]) -> Wrong:
    """A step of the whole run, counted from 1, and the parameters that are others after it."""
    whole = moments(runs.whole, rank)
    before, after = (whole[at].held("parameters") for at in (step - 1, step))
    moved = sum(before.get(name) != after[name] for name in after)
    text = f"rank {rank}: step {step} makes {len(others)} of {max(moved, len(others))} parameters "
    text += f"({names_in_short(others)}) others than the whole run has, from the same weights, samples and loss: "
    seen = not is_own(runs)
    text += f"{'what else it hangs on' if seen else _OWN} is not restored"
    foreign = _foreign(runs)
    if foreign is not None:
        text += f"; rank {foreign.reader} reads what only rank {foreign.writer} has saved"
    return Wrong(WARNING if seen else ERROR, rank, step, text, foreign.place if foreign is not None else None)


class _Foreign(NamedTuple):
    """A rank reads what another one alone has saved, more than the weights. place: where it does."""

    reader: int
    writer: int
    place: protocol.Frame | None


def _foreign(runs: Runs) -> _Foreign | None:
    last = [runs.until(rank)[-1] for rank in runs.stopped.ranks]
    weights = {digest for each in last for digest in each.held("parameters").values()}
    writers: dict[str, set[int]] = {}
    for rank, event in runs.stopped.each(protocol.Kept):
        if event.path and not weights.issuperset(event.numbers):
            writers.setdefault(event.path, set()).add(rank)
    for rank, read in runs.resumed.each(protocol.Read):
        of = {writer for path in writers if lies_in(read.path, (path,)) for writer in writers[path]}
        if len(of) == 1 and rank not in of:
            return _Foreign(rank, of.pop(), own(read.site))
    return None
