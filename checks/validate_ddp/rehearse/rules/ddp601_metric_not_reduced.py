"""A run shows DDP601: ranks evaluate a share each, and nothing of it goes from rank to rank before training goes on."""

from __future__ import annotations

from validate_ddp.findings import INFO
from validate_ddp.rehearse.evaluations import Evaluation, evaluations
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import Observation, Verdict


def judge(run: Run) -> Verdict:
    """Whether a rank's own number is taken for the whole is not to be seen from outside: of itself it is an info."""
    looked = False
    found: dict[tuple[str, int], Observation] = {}
    for of_ranks in evaluations(run):
        if not _shared(of_ranks):
            continue
        looked = True
        if any(each.combined for each in of_ranks):
            continue
        first = of_ranks[0]
        message = (
            f"each rank evaluates its own share, rank {first.rank} {first.size} samples of {first.length}, "
            "and nothing is combined before training goes on: what a rank reports is of its share alone"
        )
        site = first.turn.site
        ranks = tuple(each.rank for each in of_ranks)
        found.setdefault(site.place, Observation("DDP601", INFO, site, message, (), ranks, partial=True))
    return Verdict(looked, tuple(found.values()))


def _shared(of_ranks: list[Evaluation]) -> bool:
    """Whether the ranks were given different samples."""
    samples = [set(each.samples) for each in of_ranks]
    return all(samples) and of_ranks[0].length is not None and len(set(map(frozenset, samples))) > 1
