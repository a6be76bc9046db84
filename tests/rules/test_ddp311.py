"""Shares of a rank's own batch (DDP311), wherever the criterion and the batch come from."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
import torch.nn as nn
import torch.nn.functional as F

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 9, 4), torch.randint(4, (64, 9)), torch.rand(64, 9) < 0.5)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
net = DDP(torch.nn.Linear(4, 4))
"""
HELD = """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.criterion = self.chosen("cross", ignore_index=IGNORED)

    @staticmethod
    def chosen(kind, **options):
        if kind == "mean":
            return nn.L1Loss()
        elif kind == "cross":
            return nn.CrossEntropyLoss(**options)
        return None

    def run(self):
        for x, y, mask in loader:
            labels = torch.where(mask, y, -100)
            loss = self.criterion(self.net(x).view(-1, 4), labels.view(-1))
            loss.backward()

Trainer(net).run()
"""
PICKED = """
def loss_of(criterion, given, target, has_label):
    return criterion(given[has_label == 1], target[has_label == 1])

criterion = nn.L1Loss(REDUCTION).cuda()
for x, y, mask in loader:
    loss_of(criterion, net(x), y, mask).backward()
"""
ANNOTATED = """
from dataclasses import dataclass

@dataclass
class Frames:
    mask: torch.Tensor
    target: torch.Tensor

def loss_of(net, frames: Frames):
    each = (net(frames.target) - frames.target).pow(2).mean(-1)
    return (each * frames.mask).sum() / COUNT

for frames in loader:
    loss_of(net, frames).backward()
"""
BY_HAND = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)

model = Net()
for x, y, mask in loader:
    out = model(x)
    F.l1_loss(out[mask], y[mask]).backward()
    for parameter in model.parameters():
        AVERAGE
"""

KEPT = """
class Criterion(nn.Module):
    def __init__(self, ignored: int = -1, smoothing: float = 0.1, reduction: str = "REDUCTION") -> None:
        super().__init__()
        self.ignored = ignored
        self.smoothing = smoothing
        self.reduction = reduction

    def forward(self, given, target):
        ignored = target == self.ignored
        loss = -(torch.log_softmax(given, dim=-1) * (1 - self.smoothing)).mean(-1)
        loss[ignored] = 0
        if self.reduction == "sum":
            return loss.sum()
        elif self.reduction == "mean":
            return loss.sum() / (~ignored).sum()
        return loss

criterion = Criterion()
for x, y, mask in loader:
    criterion(net(x), torch.where(mask, y, -1)).backward()
"""


@pytest.mark.parametrize(
    ("script", "severity"),
    [
        (HELD.replace("IGNORED", "-100"), "warning"),
        (HELD.replace("IGNORED", "3"), "info"),
        (PICKED.replace("REDUCTION", ""), "warning"),
        (ANNOTATED.replace("COUNT", "frames.mask.sum()"), "warning"),
        (BY_HAND.replace("AVERAGE", "dist.all_reduce(parameter.grad)"), "warning"),
        (KEPT.replace("REDUCTION", "mean"), "warning"),
    ],
)
def test_a_share_of_a_rank_s_own_batch_is_found_wherever_it_is_made(script: str, severity: str, lint: Any) -> None:
    assert [finding.severity for finding in lint.body(IMPORTED + HEAD + script).of("DDP311")] == [severity]


@pytest.mark.parametrize(
    "script",
    [
        HELD.replace("IGNORED", "-100").replace("mask, y, -100", "mask, y, 0"),
        HELD.replace("IGNORED", "-1"),
        PICKED.replace("REDUCTION", 'reduction="sum"'),
        ANNOTATED.replace("COUNT", "len(frames.mask)"),
        BY_HAND.replace("AVERAGE", "parameter.grad /= 2").replace("net = DDP(torch.nn.Linear(4, 4))", ""),
        KEPT.replace("REDUCTION", "sum"),
    ],
)
def test_what_is_a_mean_over_equal_shares_is_left_alone(script: str, lint: Any) -> None:
    head = HEAD.replace("net = DDP(torch.nn.Linear(4, 4))", "") if "parameter.grad" in script else HEAD
    assert lint.body(IMPORTED + head + script).of("DDP311") == []


IMPORTED = "from torch.utils.data import TensorDataset\n"

TALLIED = """
from prompts import classes_of

for x, y, mask in loader:
    out, classes = net(x), classes_of(y)
    loss, count = torch.tensor(0.0), START
    for i in range(len(classes)):
        if CONDITION:
            continue
        count += 1
        loss += F.l1_loss(out[[i]], y[[i]])
    REDUCTION
    loss /= max(count, 1)
    loss.backward()
"""
OF_THE_BATCH, PASS = "classes[i] == 0", "pass"
COUNTS = {
    "a number": ("0", OF_THE_BATCH, PASS, ["warning"]),
    "a tensor": ("torch.tensor(0.0)", OF_THE_BATCH, PASS, ["warning"]),
    "the sample itself is asked": ("0", "not y[i].sum().item() > 3", PASS, ["warning"]),
    "every sample": ("0", "i < 0", PASS, []),
    "what a batch has": ("0", "'a' in classes", PASS, []),
    "an option": ("0", "int(os.environ['EVERY']) > 3", PASS, []),
    "of all ranks": ("torch.tensor(0.0)", OF_THE_BATCH, "dist.all_reduce(count)", []),
}


@pytest.mark.parametrize(("start", "condition", "reduction", "found"), COUNTS.values(), ids=COUNTS.keys())
def test_so_is_a_count_that_a_loop_makes(
    start: str, condition: str, reduction: str, found: list[str], lint: Any
) -> None:
    script = TALLIED.replace("START", start).replace("CONDITION", condition).replace("REDUCTION", reduction)
    assert lint.body(IMPORTED + HEAD + script).of("DDP311").severities == found


LENGTHS = """
for x, target_lengths, mask in loader:
    loss = F.mse_loss(net(x), mask, reduction="sum") / COUNT
    loss.backward()
"""


@pytest.mark.parametrize(
    ("count", "found"),
    [
        ("target_lengths.sum()", ["warning"]),
        ("torch.sum(target_lengths - 1).to(x.device)", ["warning"]),
        ("len(target_lengths)", []),
        ("target_lengths.shape[0]", []),
        ("target_lengths.sum(dim=1).max()", []),
    ],
)
def test_the_sum_of_the_lengths_in_a_batch_is_a_count(count: str, found: list[str], lint: Any) -> None:
    assert lint.body(IMPORTED + HEAD + LENGTHS.replace("COUNT", count)).of("DDP311").severities == found
