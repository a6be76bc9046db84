"""A run shows DDP302: what a raw gather of features gave is part of the loss, and no gradient goes back through it."""

from __future__ import annotations

from validate_ddp.catalogue import ERROR, INFO
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """The own rows put back among the gathered ones carry a gradient, of 1 over the world size: info."""
    found: dict[tuple[str, int], Observation] = {}
    for rank, event in run.each("gathered"):
        site = event["site"]
        caller = site.own
        if event["own"]:
            severity, message = INFO, (
                f"the loss is made of what `{event['op']}` gathered with this rank's own rows put back: unless it is "
                "scaled by the world size, the gradient is that of one process divided by it"
            )
        else:
            severity, message = ERROR, (
                f"the loss is made of what `{event['op']}` gathered, which has no gradient: its value is that of the "
                "global batch, its gradient is not"
            )
        found.setdefault((caller.path, caller.line), Observation("DDP302", severity, site, message, (), (rank,)))
    # Without such an event nothing is known: only gathers of what needs a gradient are followed.
    return Verdict(True, tuple(found.values())) if found else NOT_OBSERVED
