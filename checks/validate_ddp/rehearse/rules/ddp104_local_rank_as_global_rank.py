"""A run on several nodes shows DDP104: a rank joins the group, or shares the data, under its local rank."""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Looks at the ranks whose local rank differs from their rank."""
    found = []
    looked = False
    for rank, event in run.each("joining", "sampler"):
        local = run.local_rank(rank)
        if rank == local or event.get("rank") is None:
            continue
        looked = True
        if event["rank"] == local:
            what = "joins the process group" if event["event"] == "joining" else "takes its share of the data"
            message = f"rank {rank} {what} as rank {local}, which is its local rank: {_wrong(event['event'])}"
            found.append(Observation("DDP104", ERROR, event["site"], message, (), (rank,)))
    return Verdict(True, tuple(found[:1])) if found else (HELD if looked else NOT_OBSERVED)


def _wrong(kind: str) -> str:
    if kind == "joining":
        return "another node has a rank of that number too"
    return "ranks of several nodes read the same samples, and others are read by nobody"
