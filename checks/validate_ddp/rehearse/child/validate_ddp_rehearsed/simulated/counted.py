"""The fake group of a rank, telling of each call how much it moves: the script's, a wrapper's, or one of shards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..patching import Handed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed import ProcessGroup

    from .world import World

_METHODS = {
    "all_reduce": {"allreduce": "", "allreduce_coalesced": ""},
    "all_gather": {
        "allgather": "", "allgather_coalesced": "", "all_gather_single": "_allgather_base", "_allgather_base": "",
        "all_gather_single_coalesced": "_allgather_base", "allgather_into_tensor_coalesced": "_allgather_base",
    },
    "reduce_scatter": {
        "reduce_scatter": "", "reduce_scatter_single": "_reduce_scatter_base", "_reduce_scatter_base": "",
        "reduce_scatter_single_coalesced": "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
    },
    "all_to_all": {"alltoall": "", "all_to_all_single": "alltoall_base", "alltoall_base": ""},
    "broadcast": {"broadcast": ""}, "reduce": {"reduce": ""}, "gather": {"gather": ""}, "scatter": {"scatter": ""},
    "send": {"send": ""}, "recv": {"recv": "", "recv_anysource": ""},
}  # fmt: skip
"""By kind, the methods of a group, whose first two arguments are its tensors, and what the fake one calls them."""


def install(world: World) -> None:
    """Local. Groups of the fake backend are made as counted ones from now on."""
    dist = world.dist
    plugins = dist.Backend._plugins
    made, plain = plugins["FAKE"].creator_fn, dist.ProcessGroup

    class Counted(plain):  # type: ignore[misc, valid-type]
        """A group in Python: what calls it from C++ comes here too."""

        def __init__(self, rank: int, size: int, fake: Handed) -> None:
            super().__init__(rank, size)
            self.fake = fake
            for device in ("cpu", "cuda"):
                self._register_backend(world.session.torch.device(device), plain.BackendType.CUSTOM, fake)

        def barrier(self, *args: object, **kwargs: object) -> object:
            world.meet()
            return self.fake.barrier(*args, **kwargs)

    for kind, methods in _METHODS.items():
        for name, fakes in methods.items():
            if hasattr(plain, name):
                setattr(Counted, name, _counting(world, kind, name, fakes or name))

    def counted(*given: object) -> ProcessGroup:
        fake = made(*given)
        return Counted(fake.rank(), fake.size(), fake)

    plugins["FAKE"] = plugins["FAKE"]._replace(creator_fn=counted)


def _counting(world: World, kind: str, name: str, fakes: str) -> Callable[..., object]:
    def call(group: Handed, *args: object, **kwargs: object) -> object:
        given: list[Handed] = [*args, *kwargs.values()][:2]
        world.moved(kind, max(map(in_bytes, given)), group)
        if fakes == name or not name.endswith("coalesced"):
            return getattr(group.fake, fakes)(*args, **kwargs)
        return [getattr(group.fake, fakes)(*pair) for pair in zip(*given, strict=False)][-1]

    return call


def in_bytes(given: object) -> int:
    """Of a tensor, or of lists of them; nothing of what is none."""
    return sum(math.prod(each.shape) * each.element_size() for each in flat(given) if hasattr(each, "element_size"))


def flat(given: Handed) -> Iterator[Handed]:
    """What lists in lists hold."""
    if isinstance(given, (list, tuple)):
        for each in given:
            yield from flat(each)
    elif given is not None:
        yield given
