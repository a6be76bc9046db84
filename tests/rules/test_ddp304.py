"""DDP304: of the two ways that a loop has to run backward, the one which reduces every time is told."""

from __future__ import annotations

from typing import Any

SCRIPT = """
import argparse
import deepspeed
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

args = argparse.ArgumentParser().parse_args()
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if args.deepspeed:
    model, optimizer, _, _ = deepspeed.initialize(args=args, model=model)
else:
    model = DDP(model)
for epoch in range(3):
    for i, batch in enumerate([torch.ones(2, 4)] * 8):
        loss = model(batch).sum()
        if args.deepspeed:
            model.backward(loss)
            model.step()
        else:
            loss.backward()  # here
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_the_backward_of_an_engine_is_left_alone(lint: Any) -> None:
    lines = [finding.line for finding in lint(SCRIPT).of("DDP304")]
    assert lines == [SCRIPT[: SCRIPT.index("# here")].count("\n") + 1]


SKIPPING = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    skipped = False
    for part in range(4):
        loss = model(torch.ones(2, 4)).mean()
        bad = torch.isnan(loss.detach()).float()
        dist.all_reduce(bad)
        if bad.item() > 0:
            skipped = True
            continue
        loss.backward()
    CONDITION
        optimizer.zero_grad()
        SKIP
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_a_batch_that_is_skipped_hides_no_accumulation(lint: Any) -> None:
    found = SKIPPING.replace("CONDITION", "if skipped:").replace("SKIP", "continue")
    assert lint(found).of("DDP304").severities == ["info"]


def test_what_is_zeroed_ahead_of_every_step_is_none(lint: Any) -> None:
    zeroed = SKIPPING.replace("CONDITION", "if True:").replace("SKIP", "pass")
    assert lint(zeroed).of("DDP304").severities == []
