"""What a restarted run counts: steps to its end, micro-batches, the scale of gradients; and what it saves later."""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.record.restart import Runs, Seen, Wrong, draws, firsts, learned_alike, moments
from validate_ddp.record.restarted_updates import NEAR
from validate_ddp.record.run import Run
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

_ENDED = "finished"


def counters(runs: Runs, clean: bool) -> Seen:
    """clean: nothing else differs, so that what is saved later has to be the same bit by bit; numbers that count are
    compared else too."""
    if not runs.same_size:
        return
    for rank, mine, theirs in firsts(runs):
        one, two = len(mine.event.losses), len(theirs.event.losses)
        if one and two and one not in (two, two - _thrown_away(runs.whole, rank)):
            text = f"rank {rank}: step {runs.base + 1} is made of {two} backwards, where the whole run's is of {one}"
            yield Wrong(ERROR, rank, runs.base + 1, text + ": the count of micro-batches begins again")
            return
        if mine.event.scale and theirs.event.scale and mine.event.scale[0] != theirs.event.scale[0]:
            text = (
                f"the GradScaler's scale is {theirs.event.scale[0]:g}, where the whole run has {mine.event.scale[0]:g}"
            )
            yield Wrong(WARNING, rank, runs.base + 1, text)
            return
    wrong = next(_saved(runs, clean), None) or next(_length(runs), None) or (next(_loss(runs), None) if clean else None)
    yield wrong  # or that all is well


def _thrown_away(run: Run, rank: int) -> int:
    """Backwards that a run makes before its first step beyond those of a step, as to have DDP's buckets settled."""
    every = moments(run, rank)[:2]
    return max(0, len(every[0].event.losses) - len(every[-1].event.losses))


def _loss(runs: Runs) -> Iterator[Wrong]:
    """Where all that is known of a step is as it was, and its loss is another, while the run that was ended had it."""
    for rank, mine, theirs in firsts(runs):
        again = runs.until(rank)[runs.base].event.losses
        drawn = {name: state for name, state in mine.held("random").items() if draws(runs, rank, name)}
        alike = mine.fed and mine.fed == theirs.fed and drawn.items() <= theirs.held("random").items()
        one, two = mine.event.losses[-1:], theirs.event.losses[-1:]
        if alike and one and two and again == mine.event.losses and abs(one[0] - two[0]) > NEAR * abs(one[0]):
            text = f"the loss of step {runs.base + 1} is {two[0]:.6g}, where the whole run has {one[0]:.6g}, from the "
            text += "same samples, weights and random state: something else that it hangs on is not restored"
            yield Wrong(WARNING, rank, runs.base + 1, f"rank {rank}: {text}")
            return


def _length(runs: Runs) -> Iterator[Wrong]:
    if runs.whole.outcome != _ENDED or runs.resumed.outcome != _ENDED or runs.ended:
        return  # a number of steps may be that of each run
    rank = runs.whole.ranks[0]
    left, taken = len(moments(runs.whole, rank)) - runs.base, len(moments(runs.resumed, rank))
    if taken != left:
        text = f"the restarted run takes {taken} steps, where the whole run had {left} left"
        yield Wrong(WARNING, rank, runs.base + 1, text + (": it counts anew" if taken > left else ""))


Saves = dict[int, list[protocol.Kept]]


def _by_step(run: Run, rank: int, base: int = 0) -> Saves:
    found: Saves = {}
    for event in run.of(rank, protocol.Kept):
        found.setdefault(event.after + base, []).append(event)
    return found


def _saved(runs: Runs, clean: bool) -> Iterator[Wrong]:
    """The first that is saved by both after the same steps, but not alike."""
    for rank in runs.resumed.ranks:
        whole, again = _by_step(runs.whole, rank), _by_step(runs.stopped, rank)
        volatile = {key for step in again for key in _unlike(whole.get(step, []), again[step])}
        resumed = _by_step(runs.resumed, rank, runs.base)
        for step in sorted(step for step in resumed if step > runs.base and step in whole):
            unlike = _unlike(whole[step], resumed[step])
            alike = clean and learned_alike(runs, rank, step)
            keys = [key for key in unlike if key not in volatile and (alike or _counts(*unlike[key]))]
            if keys:
                key = keys[0]
                one, two = unlike[key]
                values = f" ({two}, where the whole run saves {one})" if one and two else ""
                more = f", and {len(keys) - 1} more" if len(keys) > 1 else ""
                text = f"what is saved after step {step} is not what the whole run saves: `{key}`{values}{more}"
                yield Wrong(ERROR if _counts(one, two) else WARNING, rank, step, text)
                return


def _unlike(one: list[protocol.Kept], two: list[protocol.Kept]) -> dict[str, tuple[str, str]]:
    """By key, what both show, of what differs in files that were saved in the same order with the same keys."""
    found: dict[str, tuple[str, str]] = {}
    for mine, theirs in zip(one, two, strict=False):
        held = {
            name: (number, shown)
            for name, number, shown in zip(theirs.names, theirs.numbers, theirs.shown, strict=True)
        }
        for name, number, shown in zip(mine.names, mine.numbers, mine.shown, strict=True):
            if name in held and held[name][0] != number and not (_setting(shown) or _setting(held[name][1])):
                found.setdefault(name, (shown, held[name][1]))
    return found


def _setting(shown: str) -> bool:
    """Whether it is a text, a flag or nothing: what a command line says, which is another one after a restart."""
    return shown[:1] in ("'", '"') or shown in ("True", "False", "None")


def _counts(one: str, two: str) -> bool:
    """Whether both are whole numbers."""
    return one.isdigit() and two.isdigit()
