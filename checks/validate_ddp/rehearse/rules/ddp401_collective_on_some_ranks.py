"""A run shows DDP401: ranks part at a collective that not every rank comes to."""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.culprits import observations
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.sequences import all_met
from validate_ddp.rehearse.verdict import NOT_OBSERVED, Verdict


def judge(run: Run) -> Verdict:
    """Looks where the sequences of calls of two ranks first differ."""
    found = observations(run, "DDP401", ERROR, "a collective that not every rank comes to")
    return Verdict(True, found) if found or all_met(run) else NOT_OBSERVED
