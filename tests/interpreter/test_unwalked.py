"""What a function that is not walked may have set is no more what it was."""

from __future__ import annotations

from typing import Any

import pytest

METER = """
import torch
import torch.distributed as dist

class Meter:
    def __init__(self):
        self.steps = 0
        self.sums = {{"n": 0}}
        self.other = 0
        self.rank = dist.get_rank()

    def update(self, value):
        doubled = value * 2
        shown = doubled + 1
        self.steps += 1
        self.sums["n"] += 1
        return shown

    def log(self):
        if {}:
            if self.rank == 0:
                dist.barrier()

def count(meter, value):
    doubled = value * 2
    shown = doubled + 1
    meter.steps += 1
    meter.sums["n"] += 1
    return shown

dist.init_process_group("gloo")
meter = Meter()
for turn in range(3):
    {}
    meter.log()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("update", ["meter.update(turn)", "count(meter, turn)"])
@pytest.mark.parametrize(
    "condition, codes",
    [("self.steps", {"DDP401"}), ('self.sums["n"]', {"DDP401"}), ("self.other", set())],
)
def test_a_field_that_it_adds_to_is_no_more_zero(lint: Any, update: str, condition: str, codes: set[str]) -> None:
    lint.write(train=METER.format(condition, update))
    assert {finding.code for finding in lint.run("train.py")} == codes
