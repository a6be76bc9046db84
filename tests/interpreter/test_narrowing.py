"""What ``isinstance`` says of a model that is wrapped in one of several ways: its class counts, not the name for it."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import argparse
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import FullyShardedDataParallel as Sharded
from torch.nn.parallel import DistributedDataParallel, DistributedDataParallel as Replicas

args = argparse.ArgumentParser().parse_args()
dist.init_process_group("nccl")
model = torch.nn.Linear(2, 2)
if args.sharded:
    model = FSDP(model)
else:
    model = Replicas(model)


class Own(Replicas):
    pass


def save(model):
    TEST
        torch.save(model.state_dict(), "model.pt")


if dist.get_rank() == 0:
    save(model)
dist.destroy_process_group()
"""
OF_OTHERS = [
    "if isinstance(model, FullyShardedDataParallel):",
    "if isinstance(model, FSDP):",
    "if isinstance(model, (Sharded,)):",
    "if not isinstance(model, Replicas):",
    "assert isinstance(model, Sharded)\n    if True:",
]
OF_REPLICAS = [
    "if isinstance(model, DistributedDataParallel):",
    "if isinstance(model, Replicas):",
    "if isinstance(model, Own):",
    "if isinstance(model, (Replicas, Sharded)):",
    "if not isinstance(model, (FSDP,)):",
    "if not isinstance(model, torch.nn.DataParallel):",
]


@pytest.mark.parametrize("test", OF_OTHERS)
def test_a_wrapper_of_another_class_does_not_come_in(test: str, lint: Any) -> None:
    assert not lint(SCRIPT.replace("TEST", test), "DDP501")


@pytest.mark.parametrize("test", OF_REPLICAS)
def test_a_wrapper_of_the_class_does(test: str, lint: Any) -> None:
    assert lint(SCRIPT.replace("TEST", test), "DDP501")
