"""Random numbers that ranks draw while they train, from the generator that all share."""

from __future__ import annotations

from validate_ddp.record.run import Run
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

Key = tuple[str, str, int, int]
"""Function, path, line, and how many draws of these came before."""


def drawn_by_all(run: Run) -> list[list[protocol.Draw]]:
    """The first draws at each place that every replica has come to, each as the draw of every one of them."""
    by_rank = [_draws(run, rank) for rank in run.replicas]
    return [[draws[key] for draws in by_rank] for key in by_rank[0] if all(key in draws for draws in by_rank)]


def seed_before(run: Run, draw: protocol.Draw) -> protocol.Seed | None:
    """The last seeding before a draw of the first rank."""
    events = run.by_rank[run.ranks[0]]
    earlier = events[: next(at for at, event in enumerate(events) if event is draw)]
    return next((event for event in reversed(earlier) if isinstance(event, protocol.Seed)), None)


def _draws(run: Run, rank: int) -> dict[Key, protocol.Draw]:
    return {(event.function, *event.site.place, event.count): event for event in run.of(rank, protocol.Draw)}
