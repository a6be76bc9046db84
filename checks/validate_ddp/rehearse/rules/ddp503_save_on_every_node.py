"""A run on several nodes shows DDP503: the first rank of each node writes the same path."""

from __future__ import annotations

from validate_ddp.findings import WARNING
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict
from validate_ddp.rehearse.writers import is_of_script, one_a_node, writers


def judge(run: Run) -> Verdict:
    """With one rank a node this cannot be told from a save on every rank, which DDP502 reports."""
    if int(run.plan.get("nnodes", 1)) < 2 or int(run.plan.get("nproc_per_node", 1)) < 2:
        return NOT_OBSERVED
    written = writers(run)
    for path, events in written.items():
        ranks = sorted({rank for rank, _ in events})
        if len(ranks) > 1 and one_a_node(run, ranks) and is_of_script(events[0][1]):
            message = f"ranks {', '.join(map(str, ranks))}, the first of each node, write `{path}`: nodes share a disk"
            site = events[0][1]["site"]
            return Verdict(True, (Observation("DDP503", WARNING, site, message, (), tuple(ranks)),))
    return HELD if written else NOT_OBSERVED
