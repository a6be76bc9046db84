"""A run shows DDP502: several ranks write one path."""

from __future__ import annotations

from validate_ddp.findings import ERROR, INFO, WARNING
from validate_ddp.rehearse.log import Event
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict
from validate_ddp.rehearse.writers import is_of_script, logs, one_a_node, writers


def judge(run: Run) -> Verdict:
    """A checkpoint is an error, any other file that the script itself opens a warning; a log to which they append,
    which loses nothing, is told."""
    if run.world_size < 2 or len(run.ranks) < 2:
        return NOT_OBSERVED
    found: dict[tuple[str, int], Observation] = {}
    written = writers(run)
    for path, events in written.items():
        ranks = sorted({rank for rank, _ in events})
        if len(ranks) < 2 or one_a_node(run, ranks):
            continue
        severity, event = _worst([event for _, event in events])
        if event is None:
            continue
        message = f"{len(ranks)} ranks write `{path}`: which one's is left, and whether it is whole, is left to chance"
        if event.get("mode") == "append":
            message = f"{len(ranks)} ranks append to `{path}`: what each writes stands there among that of the others"
        found.setdefault(event["site"].place, Observation("DDP502", severity, event["site"], message, (), tuple(ranks)))
    return Verdict(True, tuple(found.values())) if found else (HELD if written else NOT_OBSERVED)


def _worst(events: list[Event]) -> tuple[str, Event | None]:
    for event in events:
        if event["event"] == "save" and event["tensors"]:
            return ERROR, event
    opened = [event for event in events if is_of_script(event)]
    for event in sorted(opened, key=lambda event: event.get("mode") == "append"):
        if event.get("mode") != "append" or not logs(event):
            return WARNING, event
    return INFO, opened[0] if opened else None
