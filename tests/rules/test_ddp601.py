"""DDP601 where one line tells of several numbers, and where a number ends the training of a rank."""

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


STOPPER = """
class Stopper:
    def __init__(self):
        self.best, self.worse, self.done = 0.0, 0, False

    def __call__(self, accuracy):
        if accuracy > self.best:
            self.best, self.worse = accuracy, 0
        else:
            self.worse += 1
            self.done = self.worse > 3
        return self.done

stopper = Stopper()
"""
STOPS = {
    "a counter": ("best, worse = 0.0, 0", "if accuracy > best:\n    worse = 0\nelse:\n    worse += 1", "worse > 3"),
    "a limit": ("", "", "accuracy > 0.9"),
    "a field": (STOPPER, "stopper(accuracy)", "stopper.done"),
    "an answer": (STOPPER, "", "stopper(accuracy)"),
    "a flag of another": (STOPPER, "stopper(accuracy)", "other.done"),
    "the number of turns": ("", "", "epoch > 5"),
    "what rank zero says": (
        "best, worse = 0.0, 0",
        "worse = 0 if accuracy > best else worse + 1\nstop = torch.tensor(worse > 3)\ndist.broadcast(stop, 0)",
        "stop",
    ),
}
STAYING = {"a flag of another", "the number of turns", "what rank zero says"}


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.parametrize("reduce", ["pass", "dist.all_reduce(right)"])
def test_a_number_of_its_own_must_not_end_a_ranks_training(lint: Any, name: str, reduce: str) -> None:
    before, between, asked = STOPS[name]
    steps = f"{between}\nif {asked}:\n    break".strip().replace("\n", "\n    ")
    script = SCRIPT.replace("for epoch", before + "\nfor epoch").replace("REDUCE", reduce)
    script = script.replace("if dist.get_rank() == 0:\n        REPORT", steps)
    found = lint(script, "DDP601")
    assert found.severities == (["warning"] if reduce == "pass" and name not in STAYING else [])
    assert all("ends the training" in finding.message for finding in found)
