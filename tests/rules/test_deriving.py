"""The way to a finding is told step by step, in the order in which a rank goes it, and with the program's own code."""

from __future__ import annotations

from typing import Any

import pytest
from validate_ddp.interpreter.fact import Fact

HEAD = """import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""


def derived(lint: Any, script: str, code: str) -> tuple[str, ...]:
    (found,) = lint(HEAD + script).of(code)
    return tuple(found.derivation)


def test_calls_loops_and_conditions_come_in_the_order_of_the_way(lint: Any) -> None:
    script = """
def save(model, epoch):
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), "model.pt")

def main(args):
    dist.init_process_group("nccl")
    model = DDP(torch.nn.Linear(2, 2))
    for epoch in range(3):
        if args.save:
            save(model, epoch)
    dist.destroy_process_group()

main(parse())
"""
    assert derived(lint, script, "DDP501") == (
        "train.py is the script: every rank runs it",
        "train.py:17 `main(parse())` is called",
        "train.py:12 in main() `for epoch in range(3)` goes round, as epochs or steps do",
        "train.py:13 in main() `if args.save`: whether it holds is not known",
        "train.py:14 in main() `save(model, epoch)` is called",
        "train.py:6 in save() `if dist.get_rank() == 0`: rank 0 only passes",
        "train.py:7 in save() `model.state_dict()` is reached on rank 0 only, and taken as a write",
        "its object is the state_dict of the DistributedDataParallel wrapper (train.py:11)",
        "its path is 'model.pt'",
    )


def test_processes_that_the_script_starts_are_told_of(lint: Any) -> None:
    script = """import torch.multiprocessing as mp

def worker(rank, path):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = DDP(torch.nn.Linear(2, 2))
    torch.save({"epoch": 1, "model": model.module.state_dict()}, path)
    dist.destroy_process_group()

mp.spawn(worker, args=("model.pt",), nprocs=2)
"""
    steps = derived(lint, script, "DDP502")
    assert steps[0] == "train.py is the script"
    assert steps[1].endswith("nprocs=2)` starts a process for each rank")
    assert "is reached on every rank, and taken as a write" in steps[2]
    assert steps[-1] == "its path is 'model.pt'"


def test_what_a_finding_rests_on_is_told_in_words_and_without_what_is_for_rules_only(lint: Any) -> None:
    script = """
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for micro in range(8):
    model(torch.ones(2, 2)).sum().backward()
    if micro % 4 == 3:
        optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
    assert derived(lint, script, "DDP306")[-1] == "its target is an optimizer (train.py:7)"


def test_only_a_role_that_a_fact_has_may_be_left_untold() -> None:
    with pytest.raises(TypeError, match="no role of Export: paths"):

        class Export(Fact, untold="paths"):
            path: str
