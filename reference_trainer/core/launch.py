"""Which rank this process is, of those that train together. Torch-free at import.

    with World.from_torchrun() as world:
        train(world)

Keep the model in a function, as here: freed after its process group it aborts or hangs now and then (torch 2.13, gloo).
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

T = TypeVar("T", bound="World")
_TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def _cpu() -> torch.device:
    import torch

    return torch.device("cpu")


@dataclass(frozen=True)
class World:
    """The ranks that train together, and which one this is."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=_cpu)
    launcher: str = "single"
    group: ProcessGroup | None = None
    """None: one process, no collectives at all."""
    owned: bool = False
    """The group was started here, and ends when the ``with`` does."""

    @property
    def is_main(self) -> bool:
        """Rank zero: the one that writes what is written once."""
        return self.rank == 0

    @classmethod
    def from_torchrun(cls: type[T], *, timeout: float = 1800.0) -> T:
        """The world that torchrun describes, its group started; else this process alone. Collective: every rank.

        timeout: seconds for which ranks wait for each other. `reference_trainer.World` knows other launchers.
        """
        import torch
        import torch.distributed as torch_dist

        rank, local_rank, size = (int(os.environ.get(name, each)) for name, each in _TORCHRUN.items())
        cuda = torch.cuda.is_available()
        device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(device)  # by the rank on this machine
        if size == 1:
            return cls(device=device)
        torch_dist.init_process_group(
            "nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout), device_id=device if cuda else None
        )
        return cls(rank, local_rank, size, device, "torchrun", torch_dist.group.WORLD, owned=True)

    @classmethod
    def current(cls: type[T], device: torch.device | str | None = None) -> T:
        """The world as torch.distributed already has it: in tests on warm ranks, in somebody else's loop. Local.

        device: where the tensors are; the CPU by default. It does not end the group.
        """
        import torch
        import torch.distributed as torch_dist

        where = torch.device("cpu" if device is None else device)
        if not (torch_dist.is_available() and torch_dist.is_initialized()):
            return cls(device=where)
        rank, size, told = torch_dist.get_rank(), torch_dist.get_world_size(), os.environ.get("LOCAL_RANK", "")
        local_rank, group = int(told) if told.isdecimal() else rank, torch_dist.group.WORLD if size > 1 else None
        return cls(rank, local_rank, size, where, "adopted", group)

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Ends the group in order. After an exception it is left to the end of the process: others may be in a
        collective that this rank will never join, and the traceback still holds the model."""
        if kind is None and self.owned:
            import torch.distributed as torch_dist

            gc.collect()  # a model in DDP is a cycle: it must be gone before its group
            torch_dist.barrier()  # a rank that is done would close connections that another still reads from
            torch_dist.destroy_process_group()


def set_timeout(world: World, seconds: float) -> float | None:
    """Sets how long a collective may take from now on; returns what is in effect, read back. Local, but for all ranks.

    None: one process, or a torch (or backend) that does not tell. Torch has no public call for it, so the private one
    is looked up: without it the time-out of the start stays.
    """
    if world.group is None:
        return None
    from torch.distributed import distributed_c10d

    change: Any = getattr(distributed_c10d, "_set_pg_timeout", None)
    if change is not None:
        change(timedelta(seconds=seconds), world.group)
    backend: Any = world.group._get_backend(world.device)
    effective = getattr(getattr(backend, "options", None), "_timeout", None)
    return effective.total_seconds() if isinstance(effective, timedelta) else None
