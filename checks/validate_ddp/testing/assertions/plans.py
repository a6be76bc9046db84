"""That what was executed is what was planned: steps, samples, learning rates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .exchange import gathered

__tracebackhide__ = True  # pytest shows the line of the test that called, not ours


def assert_plan_matches(plan: Any, executed: Any, *, rtol: float = 1e-9, sums: Sequence[str] = ()) -> None:
    """Collective. Every rank executed what the plan says.

    plan, executed: mappings, dataclasses or named tuples. Each entry of the plan must be in ``executed`` (this rank's)
    and equal: numbers within ``rtol``, sequences step by step (learning rates, one a step). sums: entries that
    the plan has for all ranks together, such as ``samples``: the ranks' numbers are added. Raises on every rank: the
    first entry, the step in it, the rank and both values.
    """
    planned = _plain(plan)
    everyone: list[dict[str, Any]] = gathered(
        {name: value for name, value in _plain(executed).items() if name in planned}
    )
    for name, expected in planned.items():
        for rank, theirs in enumerate(everyone):
            if name not in theirs:
                raise AssertionError(f"rank {rank} says nothing of {name!r}, for which {expected!r} was planned")
        if name in sums:
            total = sum(theirs[name] for theirs in everyone)
            if not _same(total, expected, rtol):
                parts = [theirs[name] for theirs in everyone]
                raise AssertionError(f"{name!r}: planned {expected!r}, the ranks executed {total!r} ({parts})")
            continue
        for rank, theirs in enumerate(everyone):
            difference = _difference(expected, theirs[name], rtol)
            if difference:
                raise AssertionError(f"{name!r}{difference} on rank {rank}")


def _difference(expected: Any, found: Any, rtol: float) -> str:
    """` at step 3: planned 1, executed 2`; empty where they agree."""
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        for step, (left, right) in enumerate(zip(expected, found, strict=False)):
            inner = _difference(left, right, rtol)
            if inner:
                return f" at step {step}{inner}"
        if len(expected) != len(found):
            return f": planned {len(expected)} steps, executed {len(found)}"
        return ""
    return "" if _same(found, expected, rtol) else f": planned {expected!r}, executed {found!r}"


def _same(found: Any, expected: Any, rtol: float) -> bool:
    if isinstance(expected, float) or isinstance(found, float):
        try:
            return math.isclose(found, expected, rel_tol=rtol, abs_tol=0.0)
        except TypeError:
            return False
    return bool(found == expected)


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        named: dict[str, Any] = value._asdict()
        return named
    raise TypeError(f"a plan is a mapping, a dataclass or a named tuple, not {type(value).__name__}")
