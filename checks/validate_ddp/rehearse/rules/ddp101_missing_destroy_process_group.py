"""A run shows DDP101: the interpreter of a rank ends, without an error, while a process group is up."""

from __future__ import annotations

from validate_ddp.findings import INFO, WARNING
from validate_ddp.rehearse.run import Run, Site
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Looks at ranks that came to their end; after a crash a group that is up says nothing."""
    if run.outcome != "finished":
        return NOT_OBSERVED
    exits = [
        (rank, event) for rank, event in run.each("exit") if run.of(rank, "group") and not run.of(rank, "exception")
    ]
    left = [(rank, event) for rank, event in exits if event["initialized"]]
    if not exits:
        return NOT_OBSERVED
    if not left:
        return HELD
    who = "every rank" if len(left) == len(exits) else "rank " + ", ".join(str(rank) for rank, _ in left)
    message = f"the process group is still up when {who} exits: no `destroy_process_group()` was called"
    ranks = tuple(rank for rank, _ in left)
    site: Site = left[0][1]["site"]
    # A group that a library made is that library's to destroy, as with a Trainer.
    severity = INFO if site.frames and site.frames[0].library else WARNING
    return Verdict(True, (Observation("DDP101", severity, site, message, (), ranks),))
