"""The slope of the loss, along a direction in the space of all parameters: what a gradient is to be, on any ranks.

No other partition is needed, as for ranks that hold parts of a model: they do their first step again from weights that
lie a little further on, and what their losses have changed by is held against the gradients that they had before. The
direction is the same on ranks that hold the same, and each rank's own in what is its own. It goes half along the
gradient, so that little is lost to rounding, and half anywhere, so that what has no gradient by mistake is seen.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Handed
from .tape import Recorded, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from torch import Tensor

    from .begin import Part

STEP = 1e-7
"""How far, as a share of a weight's size: few units of a network change sides in so little."""
_LEAST = 1e-2
"""The size of weights that are zero."""
_SAME = 1e-9
"""Relative difference of gradients that ranks have reduced to one."""


class Direction:
    """recorded: of all ranks."""

    def __init__(self, torch: ModuleType, recorded: list[Recorded]) -> None:
        self.torch = torch
        self.weights = [each["weights"] for each in recorded]
        self.gradients: list[dict[str, Tensor]] = []
        self.held: list[set[str]] = []
        for each in recorded:
            self.gradients.append(
                {name: grad for moment in each["moments"] for name, grad in moment["gradients"].items()}
            )
            self.held.append({name for moment in each["moments"] for name in moment["held"]})

    def replicas(self, name: str, rank: int) -> list[int]:
        """The ranks that hold the same as this one under a name; none where it is not trained, or where their
        gradients differ, as of parts that start alike: which they are is not known."""
        if name not in self.held[rank]:
            return []
        mine, ranks = self.weights[rank][name], range(len(self.weights))
        same = [each for each in ranks if name in self.held[each] and self._equal(mine, self.weights[each][name])]
        first = self._gradient(name, same[0])
        size = _SAME * (float(first.norm()) + 1e-300)
        if any(float((self._gradient(name, each) - first).norm()) > size for each in same[1:]):
            return []
        return same

    def of(self, name: str, rank: int) -> Tensor | None:
        """Where a parameter of a rank goes, in units of ``STEP``."""
        same = self.replicas(name, rank)
        weight = self.weights[rank].get(name)
        if not same or weight is None or not weight.is_floating_point():
            return None
        generator = self.torch._C.Generator()
        key = name.encode() + weight.double().numpy().tobytes()
        generator.manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7], "big"))
        anywhere = self.torch.randn(weight.shape, generator=generator, dtype=self.torch.float64)
        along = self._gradient(name, same[0])
        length = max(float(weight.double().norm()), _LEAST * weight.numel() ** 0.5)
        return length * sum(each / (each.norm() + 1e-300) for each in (anywhere, along))

    def named(self) -> list[str]:
        """The parameters that can go somewhere."""
        names = dict.fromkeys(name for held in self.held for name in sorted(held))
        return [name for name in self.weights[0] | dict.fromkeys(names) if any(self._each(name))]

    def along(self, names: list[str]) -> float:
        """What the losses of the ranks are to change by, by their gradients: replicas count once."""
        return sum(
            float((self._gradient(name, rank) * direction).sum())
            for name in names
            for rank, direction in self._each(name)
        )

    def _each(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """For each of those that hold the same under a name, the first of them."""
        for rank in range(len(self.weights)):
            direction = self.of(name, rank)
            if direction is not None and self.replicas(name, rank)[0] == rank:
                yield rank, direction

    def _gradient(self, name: str, rank: int) -> Tensor:
        grad: Handed = self.gradients[rank].get(name)
        return (
            self.torch.zeros_like(self.weights[rank][name], dtype=self.torch.float64) if grad is None else grad.double()
        )

    def _equal(self, one: Tensor, other: Tensor) -> bool:
        return bool(one.shape == other.shape and self.torch.equal(one, other))


def direction(torch: ModuleType, part: Part) -> Direction:
    """That of what the ranks have recorded. Local."""
    return Direction(torch, [load(torch, part["folder"], rank, part["of"]) for rank in range(part["size"])])


def losses(recorded: list[Recorded]) -> list[float] | None:
    """What each rank's backwards were called on, added up; None where some came after a step."""
    if any(moment["loss"] for each in recorded for moment in each["moments"][1:]):
        return None
    found = [each["moments"][0]["loss"] for each in recorded]
    return found if any(found) else None


def measured(torch: ModuleType, part: Part) -> protocol.Sloped:
    """Local. What the losses of ``up`` have changed by, beside what the gradients say."""
    ranks = range(part["size"])
    way = direction(torch, part)
    names = way.named()
    before = losses([load(torch, part["folder"], rank, part["of"]) for rank in ranks])
    after = losses([load(torch, part["folder"], rank, "up") for rank in ranks])
    if before is None or after is None:
        return protocol.Sloped(names=[], along=0.0, slope=0.0)
    held = {name for each in way.held for name in each}
    slope = sum(two - one for one, two in zip(before, after, strict=True)) / STEP / part["size"]
    chosen = names if part["names"] is None else part["names"]
    return protocol.Sloped(names=names, along=way.along(chosen), slope=slope, stays=len(held.difference(names)))
