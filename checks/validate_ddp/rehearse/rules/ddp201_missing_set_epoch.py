"""A run shows DDP201: a shuffling DistributedSampler gives the same order in two epochs of training."""

from __future__ import annotations

from itertools import chain, pairwise

from validate_ddp.catalogue import ERROR
from validate_ddp.rehearse.iterations import Turn, loader_of, sampler_of, training_turns
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Note, Observation, Verdict

_ENOUGH = 4
"""Indices that must agree: fewer can by chance."""


def judge(run: Run) -> Verdict:
    """Compares the indices of consecutive iterations over the same loader."""
    looked = False
    found: dict[tuple[str, int], Observation] = {}
    for rank in run.ranks:
        by_loader: dict[int, list[Turn]] = {}
        for turn in training_turns(run, rank):
            by_loader.setdefault(turn.loader, []).append(turn)
        for number, turns in by_loader.items():
            loader = loader_of(run, rank, number)
            sampler = sampler_of(run, rank, loader) if loader else None
            if sampler is None or not sampler["shuffle"]:
                continue
            for epoch, (one, two) in enumerate(pairwise(turns)):
                first, second = _prefixes(one, two)
                if len(first) < _ENOUGH:
                    continue
                looked = True
                if first == second:
                    shown = ", ".join(map(str, first[:5]))
                    message = (
                        f"epochs {epoch} and {epoch + 1} take the same samples in the same order "
                        f"({shown}, ...): `set_epoch` is not called between them"
                    )
                    notes = (Note(two.site, "the iteration that repeats the one before"),)
                    site = sampler["site"]
                    found.setdefault(site.place, Observation("DDP201", ERROR, site, message, notes, (rank,)))
    return Verdict(True, tuple(found.values())) if found else (HELD if looked else NOT_OBSERVED)


def _prefixes(one: Turn, two: Turn) -> tuple[list[int], list[int]]:
    count = min(len(one.batches), len(two.batches))
    return list(chain(*one.indices[:count])), list(chain(*two.indices[:count]))
