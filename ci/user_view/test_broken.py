"""What goes wrong on the second day: each kind of failure that a user meets."""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from trainer import build, fit
from validate_ddp.testing import assert_replicas_equal


@pytest.mark.world_size(2)
def test_forgotten_ddp(world, batch):
    model = build()
    fit(model, world.scattered(batch))
    assert_replicas_equal(model)


@pytest.mark.world_size(2)
def test_wrong_number(world):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 3


@pytest.mark.world_size(2)
@pytest.mark.timeout(2)
def test_validation_on_one_rank(world):
    print("validation begins on rank", world.rank)
    dist.barrier()
    if world.rank == 0:
        dist.all_reduce(torch.ones(1))
    dist.all_gather_object([None] * world.size, world.rank)


@pytest.mark.world_size(2)
def test_killed(world):
    print("rank", world.rank, "loads its data")
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
