"""Moving averages of tensors that are sharded over ranks: each of them must update its own part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Handed, Kwargs

if TYPE_CHECKING:
    from torch import Tensor

    from ..session import Session

_NEAR = 0.5
"""A sum of ``decay * average`` and something else is an average only if that is about ``(1 - decay) * average``."""


class OfShards:
    """The updates of averages of shards in this process: the first that is seen of each set of ranks is told."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.told: set[tuple[int, ...]] = set()
        self.scaled: tuple[int, float, Tensor] | None = None
        """Of what was multiplied last: the address of this rank's part, by how much, and the part from before."""

    def interpolating(self, average: Handed, new: Args, rest: Args, kwargs: Kwargs) -> None:
        """Before ``average.lerp_(new, weight)``."""
        weight = rest[0] if rest else kwargs.get("weight")
        if isinstance(weight, float) and 0 < weight < 1:
            self.updated(average)

    def scaling(self, average: Handed, factors: Args, rest: Args, kwargs: Kwargs) -> None:
        """Before ``average.mul_(decay)``, which says nothing without what is added next."""
        factor = factors[0] if factors else kwargs.get("other")
        self.scaled = None
        if isinstance(factor, float) and 0 < factor < 1 and self._ranks(average):
            part = average._local_tensor.detach()
            self.scaled = part.data_ptr(), factor, part.clone()

    def adding(self, average: Handed, new: Args, rest: Args, kwargs: Kwargs) -> None:
        """Before ``average.add_(new, alpha=1 - decay)`` or ``average.add_((1 - decay) * new)``."""
        held, self.scaled = self.scaled, None
        other: Handed = new[0] if new else kwargs.get("other")
        if held is None or held[0] != average._local_tensor.data_ptr() or not hasattr(other, "_local_tensor"):
            return
        weight, alpha = 1 - held[1], kwargs.get("alpha", rest[0] if rest else 1)
        if isinstance(alpha, float) and abs(alpha - weight) < 1e-3 * weight:
            self.updated(average)
        elif alpha == 1:
            old, target = held[2].float(), other._local_tensor.detach().float() / weight
            if old.shape == target.shape and bool((old - target).norm() <= _NEAR * old.norm()):
                self.updated(average)

    def updated(self, average: Handed) -> None:
        """Tells that this rank updates its part, once of each set of ranks."""
        ranks = self._ranks(average)
        if ranks:
            self.told.add(tuple(ranks))
            self.session.emit(protocol.AveragedShards(ranks=ranks, site=self.session.here()))

    def _ranks(self, tensor: Handed) -> list[int]:
        """The ranks that hold the other parts of what this one holds a part of; none where all is told of them."""
        mesh: Handed = getattr(tensor, "device_mesh", None)
        placements = getattr(tensor, "placements", None)
        here = mesh.get_coordinate() if mesh is not None else None
        if here is None or not placements or not tensor.is_floating_point():
            return []
        place = tuple(slice(None) if each.is_shard() else at for each, at in zip(placements, here, strict=True))
        ranks = [int(each) for each in mesh.mesh[place].reshape(-1).tolist()]
        return ranks if len(ranks) > 1 and tuple(ranks) not in self.told else []
