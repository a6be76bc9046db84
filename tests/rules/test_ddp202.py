"""DDP202 looks through batch samplers, and through generators that begin a loader again."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

def cycle(loader):
    while True:
        for batch in loader:
            yield batch

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(1, 1))
data = torch.ones(8, 1)
batches = cycle(DataLoader(data, {}))
for step in range(4):
    model(next(batches)).sum().backward()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("sampler", "wanted"),
    [
        ("sampler=BatchSampler(RandomSampler(data), 2, False), batch_size=None", True),
        ("batch_sampler=BatchSampler(RandomSampler(data), 2, False)", True),
        ("batch_sampler=BatchSampler(DistributedSampler(data, shuffle=False), 2, False)", False),
        ("batch_sampler=make(data)", False),
    ],
)
def test_a_batch_sampler_shards_as_what_it_draws_from(lint: Any, sampler: str, wanted: bool) -> None:
    lint.write(train=SCRIPT.format(sampler))
    assert ("DDP202" in {finding.code for finding in lint.run("train.py")}) is wanted


PARTS = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

def build(context=None):
    return {}

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
model = build()
for batch in DataLoader(torch.ones(8, 1), shuffle=True):
    model(batch).sum().backward()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("built", "severity"),
    [
        ("DDP(torch.nn.Linear(1, 1))", "error"),
        ("DDP(torch.nn.Linear(1, 1), process_group=None)", "error"),
        ("DDP(torch.nn.Linear(1, 1), process_group=dist.group.WORLD)", "error"),
        ("DDP(torch.nn.Linear(1, 1), process_group=dist.new_group([0, 1]))", "warning"),
        ("DDP(torch.nn.Linear(1, 1), process_group=context.group)", "warning"),
        ("fully_shard(torch.nn.Linear(1, 1), mesh=mesh)", "error"),
        ("fully_shard(torch.nn.Linear(1, 1), mesh=mesh['dp'])", "warning"),
    ],
)
def test_a_wrapper_for_a_group_of_the_ranks_is_no_proof(lint: Any, built: str, severity: str) -> None:
    """The ranks of others may hold parts of one model, as in tensor parallelism, and share its data."""
    lint.write(train=PARTS.format(built))
    assert [(each.code, each.severity) for each in lint.run("train.py") if each.code == "DDP202"] == [
        ("DDP202", severity)
    ]


OPTIONS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

options = {"batch_size": 2, "shuffle": True, "num_workers": 2}
CHANGE
dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(1, 1))
for batch in DataLoader(torch.ones(8, 1), **options):
    model(batch).sum().backward()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("", True),
        ('options["sampler"] = DistributedSampler(torch.ones(8, 1))', False),
        ("options.update(load())", False),
        ("options = load()", False),
    ],
)
def test_options_that_are_written_out_and_never_changed_say_all(lint: Any, change: str, wanted: bool) -> None:
    lint.write(train=OPTIONS.replace("CHANGE", change))
    assert bool(lint.run("train.py").of("DDP202")) == wanted
