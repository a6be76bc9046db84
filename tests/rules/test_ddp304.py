"""DDP304: of the two ways that a loop has to run backward, the one which reduces every time is told."""

from __future__ import annotations

from pathlib import Path

from validate_ddp.config import Settings
from validate_ddp.lint import check

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


def test_the_backward_of_an_engine_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    outcome = check([str(tmp_path / "train.py")], Settings(cache_dir=None, root=str(tmp_path)))
    lines = [finding.line for finding in outcome.findings if finding.code == "DDP304"]
    assert lines == [SCRIPT[: SCRIPT.index("# here")].count("\n") + 1]
