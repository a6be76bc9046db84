"""The ranks meet: a device for each, a process group over all; and what they agree on. Failures are one line."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist

from .config import ConfigError, DistConfig
from .core.collectives import broadcast_object, gather_objects
from .launch import Launch, LaunchError, World
from .machines import suspects

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")
_starts = itertools.count()  # Groups started by this process; all ranks have the same number.


def pin_device(launch: Launch, wanted: str) -> torch.device:
    """This rank's device, by its rank on this machine, made the current one. wanted: "auto", "cpu" or "cuda". Local."""
    visible = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if visible == 0 and wanted == "cuda":
        raise LaunchError("device is cuda, but torch sees no GPU; say --device cpu, or look at nvidia-smi")
    if visible == 0:
        return torch.device("cpu")
    own = launch.launcher == "slurm" and visible == 1  # a task that was given one GPU of its own sees it as 0
    if not own and max(launch.local_world_size, launch.local_rank + 1) > visible:
        told = f"{launch.local_world_size} ranks on this machine, but torch sees {visible} GPU{'s' * (visible > 1)}"
        raise LaunchError(f"{told}; start one rank for each GPU, or say --device cpu")
    index = 0 if own else launch.local_rank
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def start_group(launch: Launch, device: torch.device, config: DistConfig) -> ProcessGroup | None:
    """The default process group, over all ranks; ``LaunchError`` where they do not meet in time. Collective."""
    if dist.is_initialized():
        raise LaunchError("torch.distributed is initialised already; adopt its group with World.current()")
    backend = config.backend if config.backend != "auto" else ("nccl" if device.type == "cuda" else "gloo")
    if backend == "nccl" and device.type != "cuda":
        raise LaunchError("dist.backend is nccl, which needs a GPU for each rank; say --dist.backend gloo")
    for line in suspects(os.environ, backend) if launch.local_rank == 0 else ():  # a machine's environment is its own
        print(f"reference-trainer: warning: {line}", file=sys.stderr, flush=True)
    timeout, hosts = timedelta(seconds=config.start_timeout), launch.rank == 0 and not launch.store_hosted
    host, port = launch.master_addr or "127.0.0.1", launch.master_port or 29500
    own = {"rank": launch.rank, "world_size": launch.world_size, "device_id": device if backend == "nccl" else None}
    try:
        store = dist.TCPStore(host, port, launch.world_size, hosts, timeout, wait_for_workers=False)
        # A store of the launcher outlives our group: what an earlier one has left there must not be read.
        prefix = f"reference_trainer/{launch.attempt}/{next(_starts)}"
        dist.init_process_group(backend, store=dist.PrefixStore(prefix, store), timeout=timeout, **own)
    except (RuntimeError, ValueError) as error:
        first = " ".join((str(error).strip().splitlines() or [type(error).__name__])[0].split())
        raise LaunchError(
            f"rank {launch.rank} of {launch.world_size}: the ranks did not meet at {host}:{port} within "
            f"{config.start_timeout:g} s (dist.start_timeout): {first}; check MASTER_ADDR and MASTER_PORT, whether all "
            "ranks run, and name the network in GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME where there are several"
        ) from error
    return dist.group.WORLD


@contextmanager
def alike(world: World, kind: type[ConfigError] = ConfigError) -> Iterator[None]:
    """Raises ``kind`` on every rank if what is within raises it on one, with the first one's line. Collective."""
    problem = ""
    try:
        yield
    except kind as error:
        problem = str(error)
    problems = gather_objects(problem, world.group)
    rank = next((rank for rank, each in enumerate(problems) if each), None)
    if rank is not None:
        raise kind(f"rank {rank}: {problems[rank]}" if rank > 0 else problems[rank])


def from_rank_zero(make: Callable[[], T], world: World, kind: type[ConfigError] = ConfigError) -> T:
    """What ``make`` returns on rank zero, on every rank; its ``kind`` of error is raised on all. Collective."""
    made: list[T] = []
    with alike(world, kind):
        if world.is_main:
            made.append(make())
    return broadcast_object(made, world.group)[0]
