"""A run shows DDP506: ranks part at the ranks' shards are collected on some ranks only."""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.culprits import SHARDED, observations
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.sequences import all_met
from validate_ddp.rehearse.verdict import NOT_OBSERVED, Verdict


def judge(run: Run) -> Verdict:
    """Looks where the sequences of calls of two ranks first differ."""
    found = observations(run, "DDP506", ERROR, "the ranks' shards are collected on some ranks only")
    looked = any(event["site"].via in SHARDED for _, event in run.each("collective"))
    return Verdict(True, found) if found or (looked and all_met(run)) else NOT_OBSERVED
