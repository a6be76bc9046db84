"""A run shows DDP402: ranks part at a forward of the wrapper that not every rank makes."""

from __future__ import annotations

from validate_ddp.findings import WARNING
from validate_ddp.rehearse.culprits import observations
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.sequences import all_met
from validate_ddp.rehearse.verdict import NOT_OBSERVED, Verdict


def judge(run: Run) -> Verdict:
    """Looks where the sequences of calls of two ranks first differ."""
    found = observations(run, "DDP402", WARNING, "a forward of the wrapper that not every rank makes")
    looked = any(event["waits"] for _, event in run.each("forward"))
    return Verdict(True, found) if found or (looked and all_met(run)) else NOT_OBSERVED
