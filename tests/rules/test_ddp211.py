"""DDP211: data sets that share out what others have shared out before, and those that only look so."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

class Shards(IterableDataset):
    def __init__(self, rank=0, size=1):
        self.rank, self.size = rank, size

    def __iter__(self):
        mine = list(range(64))[self.rank :: self.size]
        worker = get_worker_info()
        if worker is not None:
            mine = mine[worker.id :: worker.num_workers]
        for index in mine:
            yield torch.full((4,), float(index))

class Blocks(IterableDataset):
    def __init__(self, parts, rank=0, size=1):
        self.parts, self.rank, self.size = parts, rank, size

    def joined(self):
        held = []
        for part in self.parts:
            held.append(part)
            if len(held) == 2:
                yield torch.cat(held)
                held = []

    def __iter__(self):
        yield from self.joined()

class Turns(Blocks):
    def __iter__(self):
        for index, block in enumerate(self.joined()):
            if index % self.size == self.rank:
                yield block

class Workers(Blocks):
    def __iter__(self):
        worker = get_worker_info()
        for index, block in enumerate(self.joined()):
            if index % worker.num_workers == worker.id:
                yield block

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for batch in DataLoader(DATA, batch_size=4):
    print(batch)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        ("Turns(Shards(rank, size), rank, size)", ["DDP211"]),
        ("Blocks(Shards(rank, size), rank, size)", []),
        ("Workers(Shards(rank, size), rank, size)", []),
        ("Turns(Shards(0, 1), rank, size)", []),
        ("Turns(Shards(), rank, size)", []),
        ("Turns(Shards(rank, size), 0, 1)", []),
        ("Turns(Shards(rank, size))", []),  # parameters that are called so, and have their defaults
    ],
)
def test_a_share_of_a_share(lint: Any, data: str, codes: list[str]) -> None:
    found = lint(SCRIPT.replace("DATA", data))
    assert [finding.code for finding in found if finding.severity != "info"] == codes
