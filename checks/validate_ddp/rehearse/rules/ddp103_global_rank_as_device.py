"""A run on several nodes shows DDP103: a rank takes the GPU with its global number. On one node both are equal."""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Looks at the ranks whose local rank differs from their rank."""
    seen = [(rank, event) for rank, event in run.each("device") if rank != run.local_rank(rank)]
    if not seen:
        return NOT_OBSERVED
    for rank, event in seen:
        if event["index"] == rank:
            message = (
                f"rank {rank} asks for GPU {rank} ({event['via']}), the number of its rank: on its node it is local "
                f"rank {run.local_rank(rank)}"
            )
            return Verdict(True, (Observation("DDP103", ERROR, event["site"], message, (), (rank,)),))
    return HELD
