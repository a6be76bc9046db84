"""A run shows DDP301: steps whose gradients differ between ranks, and no forward of the wrapper before them."""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.coverage import read_apart
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.updates import agree, differing, wrapped_steps
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Gradients that are averaged by hand are equal, and so no finding."""
    looked = False
    for number, count, update in wrapped_steps(run):
        if not update.backwards:
            continue
        if update.forwards:
            looked = True
            continue
        # Of equal samples gradients are equal, whether anything reduces them or not.
        looked = looked or (read_apart(run) and agree(run, number, count, "grads", wrapped=True))
        names = differing(run, number, count, "grads", wrapped=True)
        if names:
            call = (update.bypasses or update.backwards)[-1]
            how = "calls the module inside DDP" if update.bypasses else "never calls the DDP wrapper"
            message = (
                f"the training forward {how}: at step {count} the gradients of {len(names)} parameters differ "
                "between ranks, nothing has reduced them"
            )
            found = Observation("DDP301", ERROR, call["site"], message, (), tuple(run.ranks))
            return Verdict(True, (found,))
    return HELD if looked else NOT_OBSERVED
