"""Whether gradients are the slope of the losses: which parameters' are not, found by few runs along directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

_CLOSE = 1e-4
"""Relative difference of a slope and a gradient that are one: units of a network may change sides on the way."""
_NOTHING = 1e-6
"""A share of all parameters' slope that is rounding."""


class Along(NamedTuple):
    """What the mean loss changes by along some parameters: by their gradients, and in truth."""

    gradient: float
    slope: float

    def without(self, other: Along) -> Along:
        """Along the rest: both add up."""
        return Along(self.gradient - other.gradient, self.slope - other.slope)

    def factor(self, factors: Sequence[float], least: float) -> float | None:
        """How many times the slope the gradient is, of these; None where it is neither."""
        size = max(abs(self.gradient), abs(self.slope), least)
        return next((each for each in factors if abs(self.gradient - each * self.slope) <= _CLOSE * each * size), None)


class Wrong(NamedTuple):
    """A parameter whose gradient is not as many times the slope of the loss as the others' are. factor, others: how
    many times; None where there is no other that is right."""

    name: str
    factor: float
    others: float | None


def search(names: Sequence[str], total: Along, size: int, along: Callable[[list[str]], Along]) -> Wrong | None:
    """The parameter whose gradient is not that of the loss, of which there may be several; None where all are so many
    times the slope, once or as often as there are ranks, or all by one factor that nobody knows.

    total: along all of them. size: ranks. along: takes the first step again from a little further on, which is dear.
    """
    factors = (1.0, float(size))
    least = _NOTHING * max(abs(total.gradient), abs(total.slope))
    if total.factor(factors, least) is not None:
        return None
    left, rest = list(names), total
    right: float | None = None
    while len(left) > 1:
        half = left[: len(left) // 2]
        one = along(half)
        other = rest.without(one)
        mine, its = one.factor(factors, least), other.factor(factors, least)
        if mine is not None and its is not None and mine != its:
            return Wrong(left[-1], its, mine) if its > mine else Wrong(left[0], mine, its)
        if right is None and mine is None and its is None and _one_factor(one, other):
            return None
        right = right or mine or its
        left, rest = (left[len(half) :], other) if mine is not None else (half, one)
    return Wrong(left[0], rest.gradient / rest.slope if rest.slope else float("inf"), right)


def on_slope(factor: int, moved: int, stays: int) -> str:
    """What the ranks tell of their gradients without a reference, in words. factor: how many times the slope of the
    mean loss they are; 0 where that is not known. moved, stays: parameters that were looked at, and that were not."""
    if not factor:
        return ""
    whose = "mean" if factor == 1 else "sum"
    rest = f", {stays} more not looked at" if stays else ""
    return f"; on the ranks it is the slope of the {whose} of their losses ({moved} parameters, float64{rest})"


def _one_factor(one: Along, other: Along) -> bool:
    """Whether both are as many times the slope."""
    size = abs(one.gradient * other.slope) + abs(other.gradient * one.slope)
    return abs(one.gradient * other.slope - other.gradient * one.slope) <= _CLOSE * size
