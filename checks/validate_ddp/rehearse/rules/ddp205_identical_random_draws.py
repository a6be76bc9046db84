"""A run shows DDP205: while training, every rank draws the same random numbers at the same place."""

from __future__ import annotations

from validate_ddp.findings import WARNING
from validate_ddp.rehearse.log import Event
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Note, Observation, Verdict

Key = tuple[str, str, int, int]


def judge(run: Run) -> Verdict:
    """Compares the first draws of each place, among draws from the generator that all share."""
    if run.world_size < 2 or len(run.replicas) < 2 or not list(run.each("ddp")):
        return NOT_OBSERVED
    by_rank = {rank: _draws(run, rank) for rank in run.replicas}
    first = by_rank[run.ranks[0]]
    shared = [key for key in first if all(key in draws for draws in by_rank.values())]
    equal = [key for key in shared if all(draws[key]["digest"] == first[key]["digest"] for draws in by_rank.values())]
    if not shared:
        return NOT_OBSERVED
    if not equal:
        return HELD
    draw = first[equal[0]]
    seed = _seed_before(run, draw)
    message = f"every rank draws the same numbers in `{draw['function']}` while it trains" + (
        f": all are seeded with {seed['value']} here, so the noise is not new on each rank" if seed else ""
    )
    site = seed["site"] if seed else draw["site"]
    notes = (Note(draw["site"], f"the draw, equal on {len(run.replicas)} ranks"),) if seed else ()
    return Verdict(True, (Observation("DDP205", WARNING, site, message, notes, tuple(run.replicas)),))


def _seed_before(run: Run, draw: Event) -> Event | None:
    """The last seeding before a draw of the first rank."""
    events = run.by_rank[run.ranks[0]]
    earlier = events[: next(at for at, event in enumerate(events) if event is draw)]
    return next((event for event in reversed(earlier) if event["event"] == "seed"), None)


def _draws(run: Run, rank: int) -> dict[Key, Event]:
    return {(event["function"], *event["site"].place, event["count"]): event for event in run.of(rank, "draw")}
