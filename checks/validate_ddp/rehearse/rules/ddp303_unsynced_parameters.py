"""A run shows DDP303: an optimizer holds parameters that DDP does not wrap, and they drift apart between ranks."""

from __future__ import annotations

from validate_ddp.catalogue import ERROR, WARNING
from validate_ddp.rehearse.log import Event
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.updates import common_steps, differing, parameters
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Compares parameters after each step; in a script without DDP something else may keep them equal, or need not."""
    if run.world_size < 2 or len(run.ranks) < 2 or not list(run.each("ddp")):
        return NOT_OBSERVED
    found = []
    looked = False
    for optimizer in run.of(run.ranks[0], "optimizer"):
        number = optimizer["optimizer"]
        steps = common_steps(run, number)
        if optimizer["inner"] or not steps:
            continue
        looked = True
        for count in range(1, steps + 1):
            apart = differing(run, number, count, "params", wrapped=False)
            if apart and differing(run, number, count, "grads", wrapped=False):
                found.append(_observation(run, optimizer, count, apart))
                break
    return Verdict(True, tuple(found)) if found else (HELD if looked else NOT_OBSERVED)


def _observation(run: Run, optimizer: Event, count: int, apart: list[int]) -> Observation:
    number = optimizer["optimizer"]
    before = [parameters(run, rank)[number]["before"] for rank in run.ranks]
    equal = all(each[at] == before[0][at] for each in before for at in apart)
    shapes = ", ".join(str(tuple(parameters(run, run.ranks[0])[number]["shapes"][at])) for at in apart[:3])
    message = (
        f"{len(apart)} parameters of this optimizer ({shapes}) are under no DDP wrapper: "
        + ("equal at first, they " if equal else "they start apart, and ")
        + f"differ between ranks from step {count} on"
    )
    return Observation("DDP303", ERROR if equal else WARNING, optimizer["site"], message, (), tuple(run.ranks))
