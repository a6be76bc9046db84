"""A run shows DDP201: a shuffling DistributedSampler gives the same order in two epochs of training."""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.iterations import Reshuffle, reshuffles
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Note, Observation, Verdict

_ENOUGH = 4
"""Indices that must agree: fewer can by chance."""


def judge(run: Run) -> Verdict:
    """Compares the indices of consecutive iterations over the same loader. An epoch that some ranks set and others do
    not is DDP209's."""
    seen = [each for each in reshuffles(run) if each.sampler["shuffle"] and len(each.before) >= _ENOUGH]
    changed = {_which(each) for each in seen if each.before != each.after}
    found: dict[tuple[str, int], Observation] = {}
    for each in seen:
        if each.before == each.after and _which(each) not in changed:
            shown = ", ".join(map(str, each.before[:5]))
            message = (
                f"epochs {each.epoch} and {each.epoch + 1} take the same samples in the same order "
                f"({shown}, ...): `set_epoch` is not called between them"
            )
            notes = (Note(each.site, "the iteration that repeats the one before"),)
            site = each.sampler["site"]
            found.setdefault(site.place, Observation("DDP201", ERROR, site, message, notes, (each.rank,)))
    if found:
        return Verdict(True, tuple(found.values()))
    return HELD if seen and all(each.before != each.after for each in seen) else NOT_OBSERVED


def _which(each: Reshuffle) -> tuple[object, ...]:
    """What is the same on all ranks."""
    return each.sampler["site"].place, each.sampler["sampler"], each.epoch
