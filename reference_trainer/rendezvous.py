"""The ranks meet: a device for each, a process group over all; and what they agree on. Failures are one line."""

from __future__ import annotations

import difflib
import itertools
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist

from .config import ConfigError, DistConfig
from .core.collectives import broadcast_object, gather_objects
from .launch import Launch, LaunchError, World
from .progress import grid

if TYPE_CHECKING:
    from rich.table import Table
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


@dataclass(frozen=True)
class Place:
    """What one rank runs on."""

    rank: int
    host: str
    device: str  # Such as "cuda:0" or "cpu".
    device_name: str  # Such as "NVIDIA H100 80GB HBM3" or "x86_64, 16 cores".
    memory_bytes: int  # Of the device; of the machine where it is the CPU.


def place(world: World) -> Place:
    """Where this rank is. Local."""
    if world.device.type == "cuda":
        found = torch.cuda.get_device_properties(world.device)
        name, memory = found.name, int(found.total_memory)
    else:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        name = f"{platform.machine()}, {cores} core{'s' * (cores > 1)}"
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Place(world.rank, socket.gethostname(), str(world.device), name, memory)


def mismatches(places: Sequence[Place]) -> Iterator[str]:
    """A line where ranks have different kinds of devices. places: one a rank, in order. Local."""
    having: dict[str, list[int]] = {}
    for each in places:
        having.setdefault(each.device_name, []).append(each.rank)
    if len(having) > 1:
        told = "; ".join(f"{value} on {_ranks(ranks)}" for value, ranks in having.items())
        yield f"ranks have different devices: {told}; each step waits for the slowest"


def table_of_places(places: Sequence[Place]) -> Table:
    """One row for the ranks that follow each other on the same kind of device of a host. Local."""
    rows = []
    for (host, name, memory), group in groupby(places, lambda each: (each.host, each.device_name, each.memory_bytes)):
        some = list(group)
        devices = list(dict.fromkeys(each.device for each in some))
        shown = devices[0] if len(devices) == 1 else f"{devices[0]} to {devices[-1].rpartition(':')[2]}"
        rows.append((_ranks([each.rank for each in some]), host, shown, name, f"{memory / 2**30:,.0f} GiB"))
    return grid(rows, right=4)


def _ranks(ranks: Sequence[int]) -> str:
    """Such as "rank 3", "ranks 0 to 7", "ranks 0, 2"."""
    row = len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1))
    return f"rank{'s' * (len(ranks) > 1)} " + (f"{ranks[0]} to {ranks[-1]}" if row else ", ".join(map(str, ranks)))


def nccl_names(section: str) -> frozenset[str]:
    """The names of a section of nccl_variables.txt, with the prefix that it is called after. Local."""
    text = resources.files(__package__).joinpath("nccl_variables.txt").read_text(encoding="utf-8")
    lines = text.partition(f"[{section}]\n")[2].partition("\n[")[0].splitlines()
    prefix = section if section == "TORCH_NCCL" else "NCCL"
    return frozenset(f"{prefix}_{name}" for line in lines if not line.startswith("#") for name in line.split())


def suspects(environ: Mapping[str, str], backend: str) -> Iterator[str]:
    """A line for each variable of NCCL's that will not do what was meant by it. backend: "nccl" or "gloo". Local."""
    known, renamed, ignored = (
        nccl_names("NCCL") | nccl_names("TORCH_NCCL"),
        nccl_names("RENAMED"),
        nccl_names("IGNORED"),
    )
    names = [name for name in sorted(environ) if name.startswith(("NCCL_", "TORCH_NCCL_")) and name not in ignored]
    idle = []
    for name in (each for each in names if not each.startswith(tuple(nccl_names("PLUGINS")))):
        if name in renamed:
            yield f"{name} is called TORCH_{name} since torch 2.2; set that one"
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            yield f"{name} is no variable that NCCL or torch reads" + (f"; did you mean {near[0]}?" if near else "")
        elif backend != "nccl" and name != "TORCH_NCCL_ASYNC_ERROR_HANDLING":  # torchrun sets that for every rank
            idle.append(name)
    if idle:
        yield f"{', '.join(idle)}: without effect, for the backend is {backend}"
