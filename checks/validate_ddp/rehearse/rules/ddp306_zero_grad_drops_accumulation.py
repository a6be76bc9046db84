"""A run shows DDP306: gradients of earlier micro-batches are zeroed before the step that should use them."""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.run import Run, Site
from validate_ddp.rehearse.updates import Update, updates
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Only where it happens at most steps: a step that is skipped once, for a loss that is not finite, is no defect."""
    looked = dropped = False
    rank = run.ranks[0] if run.ranks else 0
    for steps in updates(run, rank).values():
        looked = looked or bool(steps)
        dropping = [update for update in steps if _drops(update)]
        dropped = dropped or bool(dropping)
        if len(dropping) > 1 and len(dropping) > 0.8 * len(steps):
            zero, lost = _lost(dropping[0])
            total = len(dropping[0].backwards)
            message = f"`zero_grad()` throws away the gradients of {lost} of the {total} micro-batches of each step"
            return Verdict(True, (Observation("DDP306", ERROR, zero, message, (), (rank,)),))
    return HELD if looked and not dropped else NOT_OBSERVED


def _drops(update: Update) -> bool:
    """Whether what was dropped came from the backward that the step uses: others are another loss's."""
    if not update.dropped or not update.backwards:
        return False
    used = update.backwards[-1]["site"].place
    return any(event["site"].place == used for _, lost in update.dropped for event in lost)


def _lost(update: Update) -> tuple[Site, int]:
    return update.dropped[0][0]["site"], sum(len(lost) for _, lost in update.dropped)
