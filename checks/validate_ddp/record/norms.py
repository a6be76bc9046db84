"""Norms of gradients that a script takes by hand: whether they are of the whole gradient, of which ranks have parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from validate_ddp.record.run import Run
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

_SAME, _OTHER = 1e-5, 1e-3
"""Relative differences of what is one, and of what is not."""

Kind = TypeVar("Kind", protocol.Rescaled, protocol.Squares)
Told = Mapping[int, protocol.Rescaled | protocol.Squares]


def norms(run: Run) -> Iterator[tuple[Told, str]]:
    """What the ranks of a group have said of one call, and what is wrong with it in words; "" where nothing is."""
    for scaled in _together(run.each(protocol.Rescaled)):
        if all(event.times for event in scaled.values()):
            yield scaled, _scaled({rank: event.times for rank, event in scaled.items()})
    for summed in _together(run.each(protocol.Squares)):
        weights = [event.weights for event in summed.values()]
        yield summed, _summed({rank: event.norms for rank, event in summed.items()}, weights)


def _scaled(times: Mapping[int, float]) -> str:
    """Of shards of one gradient."""
    if max(times.values()) - min(times.values()) <= _OTHER * max(map(abs, times.values())):
        return ""
    each = ", ".join(f"{value:.3g} times on rank {rank}" for rank, value in times.items())
    return f"each rank scales its shard of the gradient by a number of its own: {each}"


def _summed(norms: Mapping[int, Sequence[float | None]], weights: Sequence[Sequence[float | None]]) -> str:
    """Of squares that are added up: what all ranks hold counts as often as there are ranks."""
    held = list(norms.values())
    alike = _alike(held, weights)
    whole = sum(each**2 for one in held for each in one if each)
    more = sum((held[0][at] or 0.0) ** 2 for at in alike) * (len(held) - 1)
    if more <= _OTHER * whole:
        return ""
    who, ratio = ", ".join(map(str, norms)), (whole / (whole - more)) ** 0.5
    return (
        f"the squares of {len(alike)} gradients that ranks {who} hold alike are added up over these ranks: the norm is "
        f"{ratio:.3g} times that of the whole gradient"
    )


def _alike(norms: Sequence[Sequence[float | None]], weights: Sequence[Sequence[float | None]]) -> list[int]:
    """The places of gradients of which all ranks have the same, of the same parameters; none where they have no others,
    of parameters that are not the same either, or others in number, and where it is not clear of some. Replicas have
    gradients of their own until these are averaged, and parts of one layer may have gradients of one size."""
    found, others = list[int](), 0
    for at, (held, of) in enumerate(zip(zip(*norms, strict=False), zip(*weights, strict=False), strict=False)):
        one, apart = _apart(of) <= _SAME, _apart(held)
        if apart <= _SAME:
            found += [at] if one and any(held) else []
        elif apart < _OTHER:
            return []
        else:
            others += not one
    return found if others and len({len(each) for each in (*norms, *weights)}) == 1 else []


def _apart(norms: Sequence[float | None]) -> float:
    values = [each or 0.0 for each in norms]
    return (max(values) - min(values)) / (max(values) or 1.0)


def _together(told: Iterable[tuple[int, Kind]]) -> Iterator[dict[int, Kind]]:
    """What all ranks of a group have said of one call, in their order."""
    found: dict[object, dict[int, Kind]] = {}
    for rank, event in told:
        call = tuple(event.ranks), event.site.place
        found.setdefault((call, event.count), {})[rank] = event
    for events in found.values():
        if len(events) > 1 and set(events) == set(next(iter(events.values())).ranks):
            yield dict(sorted(events.items()))
