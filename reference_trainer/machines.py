"""Where the ranks are: host, device and memory of each, gathered once at the start and shown as one table."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from .launch import World

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Place", "mismatches", "place", "table"]


@dataclass(frozen=True)
class Place:
    """What one rank runs on."""

    rank: int
    host: str
    device: str
    """Such as "cuda:0" or "cpu"."""
    device_name: str
    """Such as "NVIDIA H100 80GB HBM3" or "x86_64, 16 cores"."""
    memory_bytes: int
    """Of the device; of the machine where it is the CPU."""
    torch: str
    device_id: str = ""
    """What tells this GPU from all others; "" where torch does not tell, and for CPUs."""


def place(world: World) -> Place:
    """Where this rank is. Local."""
    device, unit = world.device, ""
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        name, memory, unit = found.name, int(found.total_memory), str(getattr(found, "uuid", ""))
    else:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        name = f"{platform.machine()}, {cores} core{'s' * (cores > 1)}"
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return Place(world.rank, socket.gethostname(), str(device), name, memory, torch.__version__, unit)


def mismatches(places: Sequence[Place]) -> Iterator[str]:
    """A line for each thing in which ranks differ and should not. places: one a rank, in order. Local."""
    for what, values in (
        ("devices", [each.device_name for each in places]),
        ("versions of torch", [each.torch for each in places]),
    ):
        if len(set(values)) > 1:
            told = "; ".join(
                f"{value} on {_ranks([each.rank for each, its in zip(places, values, strict=True) if its == value])}"
                for value in dict.fromkeys(values)
            )
            end = "each step waits for the slowest" if what == "devices" else "results may differ from run to run"
            yield f"ranks have different {what}: {told}; {end}"
    units = [each.device_id for each in places if each.device_id]
    for unit in dict.fromkeys(units):
        if units.count(unit) > 1:
            shared = [each for each in places if each.device_id == unit]
            where = f"{shared[0].host} ({shared[0].device_name})"
            yield f"{_ranks([each.rank for each in shared])} share one GPU of {where}"


def table(places: Sequence[Place]) -> Table:
    """One row for the ranks that follow each other on the same kind of device of a host. Local."""
    from rich.table import Table

    drawn = Table.grid(padding=(0, 2))
    for _ in range(4):
        drawn.add_column()
    drawn.add_column(justify="right")
    for (host, name, memory), group in groupby(
        places, key=lambda each: (each.host, each.device_name, each.memory_bytes)
    ):
        some = list(group)
        devices = list(dict.fromkeys(each.device for each in some))
        shown = devices[0] if len(devices) == 1 else f"{devices[0]} to {devices[-1].rpartition(':')[2]}"
        drawn.add_row(_ranks([each.rank for each in some]), host, shown, name, f"{memory / 2**30:,.0f} GiB")
    return drawn


def _ranks(ranks: Sequence[int]) -> str:
    """Such as "rank 3", "ranks 0 to 7", "ranks 0, 2"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
