"""A run shows DDP201: a shuffling DistributedSampler gives the same order in two epochs of training."""

from __future__ import annotations

from validate_ddp.catalogue import ERROR
from validate_ddp.rehearse.iterations import reshuffles
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Note, Observation, Verdict

_ENOUGH = 4
"""Indices that must agree: fewer can by chance."""


def judge(run: Run) -> Verdict:
    """Compares the indices of consecutive iterations over the same loader."""
    looked = False
    found: dict[tuple[str, int], Observation] = {}
    for each in reshuffles(run):
        if not each.sampler["shuffle"] or len(each.before) < _ENOUGH:
            continue
        looked = True
        if each.before == each.after:
            shown = ", ".join(map(str, each.before[:5]))
            message = (
                f"epochs {each.epoch} and {each.epoch + 1} take the same samples in the same order "
                f"({shown}, ...): `set_epoch` is not called between them"
            )
            notes = (Note(each.site, "the iteration that repeats the one before"),)
            site = each.sampler["site"]
            found.setdefault(site.place, Observation("DDP201", ERROR, site, message, notes, (each.rank,)))
    return Verdict(True, tuple(found.values())) if found else (HELD if looked else NOT_OBSERVED)
