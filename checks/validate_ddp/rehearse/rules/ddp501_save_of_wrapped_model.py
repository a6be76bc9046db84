"""A run shows DDP501: a checkpoint is written whose names all begin with ``module.``."""

from __future__ import annotations

from validate_ddp.findings import INFO, WARNING
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """A run that also loads into a wrapper means it so: info."""
    if not list(run.each("ddp")):
        return NOT_OBSERVED
    saves = [(rank, event) for rank, event in run.each("save") if event["tensors"]]
    deliberate = bool(list(run.each("load")))
    found: dict[tuple[str, int], Observation] = {}
    for rank, event in saves:
        if event["wrapped"]:
            message = (
                f"{event['wrapped']} of {event['tensors']} saved tensors are named `module. ...`: this is the state of "
                "the wrapper, which a model that is not wrapped cannot load"
            )
            severity = INFO if deliberate else WARNING
            found.setdefault(event["site"].place, Observation("DDP501", severity, event["site"], message, (), (rank,)))
    return Verdict(True, tuple(found.values())) if found else (HELD if saves else NOT_OBSERVED)
