"""The first gradient on two ranks against that of one process: whole runs, some twenty seconds each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.runtime, pytest.mark.soak]

SCRIPT = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
drawn = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(64, 8, generator=drawn), torch.randn(64, 1, generator=drawn))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), num_workers=1)
layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), {layer}, torch.nn.Linear(16, 1)
model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
optimizer = torch.optim.Adam(model.parameters())
for count, (x, y) in enumerate(loader):
    with model.no_sync() if count % 2 == 0 else torch.enable_grad():
        x = {inputs}
        loss = (model(x.cuda()) - y.cuda()).square().mean() / 2
        ({loss}).backward()
    if count % 2:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""


def compared(folder: Path, monkeypatch: pytest.MonkeyPatch, **parts: str) -> Any:
    """The rehearsal of the script with these parts."""
    from validate_ddp.testing import rehearse

    monkeypatch.chdir(folder)
    values = {"layer": "torch.nn.Dropout(0.5)", "inputs": "x", "loss": "loss", **parts}
    (folder / "train.py").write_text(SCRIPT.format(**values))
    return rehearse("train.py", differential=True)


def test_accumulation_and_dropout_on_two_ranks_are_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = compared(tmp_path, monkeypatch)
    assert run.rules["DDP316"] == "held" and run.faults == (), str(run)


def test_a_loss_times_the_world_size_is_named_as_a_factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = compared(tmp_path, monkeypatch, loss="loss * dist.get_world_size()")
    (found,) = [each for each in run.findings if each.code == "DDP316"]
    assert "is 2 times that of one process" in found.message and "backward" in SCRIPT.splitlines()[found.line - 1]


def test_noise_of_the_scripts_own_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = compared(tmp_path, monkeypatch, inputs="x + torch.randn(8, 8)")
    assert run.rules["DDP316"] == "not observed" and "draws random numbers" in str(run)


def test_batch_norms_of_each_rank_are_told_as_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = compared(tmp_path, monkeypatch, layer="torch.nn.BatchNorm1d(16)")
    (found,) = [each for each in run.findings if each.code == "DDP316"]
    assert found.severity == "info" and "BatchNorm" in found.message
