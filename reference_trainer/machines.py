"""What ranks run on: host, device and memory of each, as one table; and variables of NCCL's that nobody reads."""

from __future__ import annotations

import difflib
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from .launch import World
from .progress import grid

if TYPE_CHECKING:
    from rich.table import Table


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


def table(places: Sequence[Place]) -> Table:
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
