"""A run shows DDP405: ranks fail for want of something that rank zero has."""

from __future__ import annotations

import re

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.log import Event
from validate_ddp.rehearse.run import Frame, Run, Site
from validate_ddp.rehearse.verdict import NOT_OBSERVED, Observation, Verdict

_WANTING = re.compile(
    r"'NoneType' object|argument of type 'NoneType'|^name '\w+' is not defined|cannot access (local|free) variable|"
    r"referenced before assignment"
)
_COMMON = ("collective", "forward", "backward", "step", "batch")


def judge(run: Run) -> Verdict:
    """Rank zero has come as far and has not failed like the others: what is wanting on all ranks is another case."""
    if run.world_size < 2 or 0 not in run.ranks:
        return NOT_OBSERVED
    failed = {rank: event for rank, event in run.each("exception") if _WANTING.search(event["message"])}
    if not failed or 0 in failed or any(_done(run, 0) < _done(run, rank) for rank in failed):
        return NOT_OBSERVED
    found: dict[tuple[str, int], Observation] = {}
    for rank, event in failed.items():
        frame = _own(event)
        if frame is None:
            continue
        ranks = tuple(other for other, its in failed.items() if _own(its) == frame)
        message = f"rank {rank} fails here with {event['kind']}: {event['message'].splitlines()[0]}; rank 0 does not"
        site = Site((frame,))
        found.setdefault(site.place, Observation("DDP405", ERROR, site, message, (), ranks))
    return Verdict(True, tuple(found.values()))


def _own(event: Event) -> Frame | None:
    return next((Frame(*entry) for entry in event["stack"] if not entry[3]), None)


def _done(run: Run, rank: int) -> int:
    return len(run.of(rank, *_COMMON))
