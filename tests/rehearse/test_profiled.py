"""Scripts under torch's profiler: it sees the calls of modules by name, and what is observed does not make it fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

SCRIPT = """
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("nccl")
torch.manual_seed(0)
inner = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
first = 0
if os.path.exists("state.pt"):
    state = torch.load("state.pt", map_location="cpu")
    inner.load_state_dict(state["model"])
    first = state["step"]
model = DistributedDataParallel(inner)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True, with_modules=True) as profiler:
    for step in range(first, 3):
        model(torch.ones(2, 4, device="cuda") + dist.get_rank()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            torch.save({"model": inner.state_dict(), "step": step + 1}, "state.pt")
        dist.barrier()
for path in sys.argv[1:]:
    profiler.export_chrome_trace(f"{path}{dist.get_rank()}")
    with open(f"{path}{dist.get_rank()}", errors="replace") as trace:  # torch writes some names that are no text
        told = trace.read()
    assert "nn.Module: Linear" in told and "nn.Module: DistributedDataParallel" in told
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", [{"partition": True, "args": ["trace"]}, {"nproc": 1, "restart_at": 1}], ids=str)
def test_a_profiler_that_keeps_stacks_and_looks_at_the_gpu_runs_to_the_end(
    how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from validate_ddp.testing import rehearse

    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    run = rehearse("train.py", static=False, timeout=200, **how)
    assert run.outcome == "finished" and not run.faults, str(run)
    assert "the profiler looks at the CPU alone" in str(run)
    assert "failed" not in str(run) and "Failed to record CUDA event" not in "".join(capfd.readouterr())
