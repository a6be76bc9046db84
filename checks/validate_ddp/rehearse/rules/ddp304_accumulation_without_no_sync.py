"""A run shows DDP304: several backwards of one place reduce gradients for one optimizer step."""

from __future__ import annotations

from validate_ddp.findings import INFO
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.updates import holds_wrapped, updates
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Backwards of several places, as of the two losses of a GAN, are no accumulation."""
    looked = False
    rank = run.ranks[0] if run.ranks else 0
    for number, steps in updates(run, rank).items():
        if not holds_wrapped(run, rank, number):
            continue
        looked = looked or bool(steps)
        wasteful = []
        for update in steps:
            reducing = [event for event in update.backwards if event["armed"]]
            places = {event["site"].place for event in reducing}
            if len(reducing) > 1 and len(places) == 1 and not update.dropped:
                wasteful.append(reducing)
        if len(wasteful) > 1:
            count = max(len(each) for each in wasteful)
            message = (
                f"{count} reductions of gradients for one step: {count - 1} of them are wasted without `no_sync()`"
            )
            found = Observation("DDP304", INFO, wasteful[0][0]["site"], message, (), (rank,))
            return Verdict(True, (found,))
    return HELD if looked else NOT_OBSERVED
