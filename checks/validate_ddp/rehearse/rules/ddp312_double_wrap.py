"""A run shows DDP312: a module that is wrapped in DDP holds a DDP wrapper already."""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Looks at what each wrapper was given."""
    wrappers = list(run.each("ddp"))
    for rank, event in wrappers:
        if event["nested"]:
            message = "what is wrapped here is wrapped in DistributedDataParallel already: gradients are reduced twice"
            return Verdict(True, (Observation("DDP312", ERROR, event["site"], message, (), (rank,)),))
    return HELD if wrappers else NOT_OBSERVED
