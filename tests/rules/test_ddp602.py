"""DDP602 under Accelerate, where a function of the step counts the steps."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from somewhere import Data

accelerator = Accelerator()
dataset = Data()
batch_size = 8
loader = DataLoader(dataset, batch_size=batch_size)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps = STEPS
scheduler = LambdaLR(optimizer, lambda step: max(0.1, 1.0 - step / steps))
PREPARE
for x in loader:
    accelerator.backward(model(x).sum())
    optimizer.step()
    scheduler.step()
"""


def found(lint: Any, steps: str, prepare: str = "") -> list[str]:
    return lint(SCRIPT.replace("STEPS", steps).replace("PREPARE", prepare), "DDP602").severities


@pytest.mark.parametrize("steps", ["len(dataset) // batch_size", "len(loader.dataset) // loader.batch_size"])
def test_the_data_set_by_the_batch_of_one_rank(lint: Any, steps: str) -> None:
    assert found(lint, steps) == ["warning"]
    assert found(lint, steps, "scheduler = accelerator.prepare(scheduler)") == []  # stepped num_processes times


@pytest.mark.parametrize(
    "steps",
    ["len(loader)", "1000", "len(dataset) // (batch_size * accelerator.num_processes)", "len(dataset) // 64"],
)
def test_steps_of_one_rank_are_right(lint: Any, steps: str) -> None:
    assert found(lint, steps) == []
