"""Small things that findings on real code hung on wrongly: names, usage lines, options, what a class can hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.lint import check

HEAD = """
import argparse
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
SCRIPTS = {
    "node count of one": (
        '"""torchrun --standalone --nnodes=1 --nproc_per_node=2 train.py"""',
        """
rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
dist.destroy_process_group()
""",
        "DDP104 warning",
    ),
    "node count of several": (
        '"""torchrun --nnodes=12 --nproc_per_node=2 train.py"""',
        """
rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
dist.destroy_process_group()
""",
        "DDP104 error",
    ),
    "a model without buffers": (
        "layer = torch.nn.LayerNorm",
        """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = layer(4)

dist.init_process_group("nccl")
model = DDP(Net())
if dist.get_rank() == 0:
    model(torch.ones(2, 4))
dist.destroy_process_group()
""",
        "DDP402 info",
    ),
    "a model with buffers": (
        "layer = torch.nn.BatchNorm1d",
        """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = layer(4)

dist.init_process_group("nccl")
model = DDP(Net())
if dist.get_rank() == 0:
    model(torch.ones(2, 4))
dist.destroy_process_group()
""",
        "DDP402 warning",
    ),
    "deepspeed's own destroy": (
        "import deepspeed\nimport deepspeed.comm as comm",
        "deepspeed.init_distributed()\ncomm.barrier()\ncomm.destroy_process_group()\n",
        "DDP101",
    ),
    "a benchmark": (
        "",
        """
dist.init_process_group("nccl")
model = torch.nn.Linear(1, 1)
wrapped = DDP(model)
model(torch.ones(1)).sum().backward()
for p in model.parameters():
    p.grad = None
dist.destroy_process_group()
""",
        "DDP301",
    ),
    "values that have a state": (
        "",
        """
def save(**extra):
    data = {}
    for key, value in extra.items():
        if hasattr(value, "state_dict"):
            data[key] = getattr(value, "module", value).state_dict()
        else:
            data[key] = value
    torch.save(data, "model.pt")

dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(1, 1))
if dist.get_rank() == 0:
    save(model=model, epoch=1)
dist.destroy_process_group()
""",
        "DDP501",
    ),
    "a switch that is always on": (
        "",
        """
parser = argparse.ArgumentParser()
parser.add_argument("--use-ema", action="store_true", default=True)
args = parser.parse_args()
dist.init_process_group("nccl")
average = torch.nn.BatchNorm1d(4)
model = DDP(torch.nn.BatchNorm1d(4))
tested = average if args.use_ema else model
if dist.get_rank() == 0:
    tested(torch.ones(2, 4))
dist.destroy_process_group()
""",
        "DDP402",
    ),
    "a reduction as a Function": (
        """
class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x / dist.get_world_size()
""",
        """
dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(4, 2))
loader = DataLoader(range(8), sampler=DistributedSampler(range(8), shuffle=False))
held_out = DataLoader(range(8), sampler=DistributedSampler(range(8)))
best = torch.load("best.pt") if os.path.exists("best.pt") else None
for epoch in range(3):
    for x, y in loader:
        model(x).mean().backward()

    def validate():
        correct = total = 0
        for i, (x, y) in enumerate(held_out):
            output = model(x)
            total += x.shape[0]
            correct += output.max(dim=1).indices.eq(y).sum()
            accuracy = 100.0 * correct / total
        accuracy = AllReduce.apply(accuracy)
        print("%.3f" % accuracy)
        return accuracy

    with torch.no_grad():
        accuracy = validate()
    if dist.get_rank() == 0 and (best is None or best < accuracy):
        best = accuracy
        torch.save({"model": model.module.state_dict(), "best": best}, "best.pt")
dist.destroy_process_group()
""",
        "DDP601",
    ),
    "a share of a list": (
        "import torch.multiprocessing as mp",
        """
def run(rank, world_size, data):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    indices = torch.cat([PARTS])
    indices = indices.split(len(indices) // world_size)[rank]
    model = DDP(torch.nn.Linear(1, 1))
    for epoch in range(3):
        for batch in DataLoader(indices, shuffle=True):
            model(batch).mean().backward()
    dist.destroy_process_group()

mp.spawn(run, args=(2, None), nprocs=2)
""".replace("PARTS", ", ".join(f'torch.load("{number}.pt")' for number in range(14))),
        "DDP202",
    ),
}
ABSENT = [name for name, row in SCRIPTS.items() if " " not in row[2]]


def _found(folder: Path, name: str) -> set[str]:
    before, script, code = SCRIPTS[name]
    (folder / "train.py").write_text(HEAD + before + "\n" + script)
    outcome = check([str(folder / "train.py")], Settings(cache_dir=None, root=str(folder)))
    return {f"{f.code} {f.severity}" for f in outcome.findings if f.code == code.partition(" ")[0]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_real_code_is_read_as_it_is_meant(name: str, tmp_path: Path) -> None:
    expected = set() if name in ABSENT else {SCRIPTS[name][2]}
    assert _found(tmp_path, name) == expected


def test_a_project_root_may_be_a_package(tmp_path: Path) -> None:
    """`benchmark/setup.py` beside `benchmark/gpu/common.py`, imported as `benchmark.gpu.common`."""
    (tmp_path / "benchmark" / "gpu").mkdir(parents=True)
    (tmp_path / "benchmark" / "setup.py").write_text("")
    (tmp_path / "benchmark" / "gpu" / "common.py").write_text(
        "import torch.distributed as dist\n\n\ndef run():\n    dist.barrier()\n    dist.destroy_process_group()\n"
    )
    script = tmp_path / "benchmark" / "gpu" / "train.py"
    script.write_text(
        "import torch.distributed as dist\nfrom benchmark.gpu.common import run\n\n"
        'dist.init_process_group("gloo")\nrun()\n'
    )
    outcome = check([str(script)], Settings(cache_dir=None, root=str(tmp_path)))
    assert not [finding for finding in outcome.findings if finding.code == "DDP101"]
