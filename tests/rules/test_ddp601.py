"""DDP601 where one line tells of several numbers."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from somewhere import train_set, test_set

dist.init_process_group("gloo")
train_loader = DataLoader(train_set, sampler=DistributedSampler(train_set, shuffle=False))
test_loader = DataLoader(test_set, sampler=DistributedSampler(test_set, shuffle=False))
model = DDP(torch.nn.Linear(1, 1))

def train():
    total = torch.zeros(())
    for x in train_loader:
        loss = model(x).sum()
        loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    return total / len(train_loader)

@torch.no_grad()
def test(model, test_loader):
    right = torch.zeros(())
    for x, y in test_loader:
        right += (model(x) == y).sum()
    REDUCE
    return right / len(test_loader)

for epoch in range(3):
    loss = train()
    accuracy = test(model, test_loader)
    if dist.get_rank() == 0:
        REPORT
dist.destroy_process_group()
"""
REPORTS = ['print(f"{epoch}: loss {loss:.3f}, {accuracy.item():.3f}")', 'print("loss", loss, "accuracy", accuracy)']


@pytest.mark.parametrize("report", REPORTS)
def test_a_reduced_number_beside_it_hides_nothing(lint: Any, report: str) -> None:
    for reduce, severities in (("pass", ["warning"]), ("dist.all_reduce(right)", [])):
        script = SCRIPT.replace("REDUCE", reduce).replace("REPORT", report)
        assert lint(script, "DDP601").severities == severities
