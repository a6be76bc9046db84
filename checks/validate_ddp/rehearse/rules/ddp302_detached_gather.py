"""A run shows DDP302: what a raw gather of features gave is part of the loss, and no gradient goes back through it."""

from __future__ import annotations

from validate_ddp.findings import ERROR, INFO
from validate_ddp.rehearse.run import Run, Site
from validate_ddp.rehearse.verdict import NOT_OBSERVED, Note, Observation, Verdict

_OWN = (
    ", with this rank's own rows put back: unless it is scaled by the world size, the gradient is that of one process "
    "divided by it"
)
_NONE = ", which has no gradient: the loss has the value of the global batch, and another gradient"


def judge(run: Run) -> Verdict:
    """The own rows put back among the gathered ones carry a gradient, of 1 over the world size: info."""
    found: dict[tuple[str, int], Observation] = {}
    for rank, event in run.each("gathered"):
        site = _in_training_step(event["site"], event["backward"])
        severity = INFO if event["own"] else ERROR
        message = f"the loss is made of what `{event['op']}` gathered" + (_OWN if event["own"] else _NONE)
        notes = (Note(event["site"], "gathered here"),) if event["site"].place != site.place else ()
        found.setdefault(site.place, Observation("DDP302", severity, site, message, notes, (rank,), event["site"]))
    # Without such an event nothing is known: only gathers of what needs a gradient are followed.
    return Verdict(True, tuple(found.values())) if found else NOT_OBSERVED


def _in_training_step(gather: Site, backward: Site) -> Site:
    """The line of the function that calls backward: a helper that gathers is right for other uses."""
    functions = {(frame.path, frame.function) for frame in backward.frames if not frame.library}
    for frame in gather.frames:
        if (frame.path, frame.function) in functions:
            return Site((frame,))
    return gather
