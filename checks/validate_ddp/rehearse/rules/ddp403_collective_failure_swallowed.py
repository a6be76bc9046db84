"""A run shows DDP403: a collective fails and the rank goes on, or ranks part at one in an exception handler."""

from __future__ import annotations

from validate_ddp.findings import WARNING
from validate_ddp.rehearse.culprits import observations
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.sequences import all_met
from validate_ddp.rehearse.verdict import NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Looks where the sequences of calls of two ranks first differ."""
    found = _swallowed(run) or observations(
        run, "DDP403", WARNING, "a collective in an exception handler, which the other ranks do not enter"
    )
    return Verdict(True, found) if found or all_met(run) else NOT_OBSERVED


def _swallowed(run: Run) -> tuple[Observation, ...]:
    """A rank that calls further collectives after one of its own has raised, and comes to no bad end."""
    for rank in run.ranks:
        failed = {event["n"]: event["error"] for event in run.of(rank, "done") if event.get("error")}
        if run.of(rank, "exception"):
            continue
        calls = run.of(rank, "collective", "forward", "backward")
        for call in calls[:-1]:
            if call["n"] in failed and call["event"] == "collective" and call.get("sequence", True):
                error = failed[call["n"]].splitlines()[0]
                message = f"`{call['op']}` fails on rank {rank} ({error}), and the rank goes on without it"
                since = ((rank, call["time"]),)
                return (Observation("DDP403", WARNING, call["site"], message, (), (rank,), since=since),)
    return ()
