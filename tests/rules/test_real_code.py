"""Small things that findings on real code hung on wrongly: names, usage lines, options, what a class can hold."""

from __future__ import annotations

from typing import Any

import pytest

NORMALIZED = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = layer(4)

dist.init_process_group("nccl")
model = DDP(Net())
if dist.get_rank() == 0:
    model(torch.ones(2, 4))
dist.destroy_process_group()
"""
PREPARED = """
from accelerate import Accelerator

accelerator = Accelerator()
model = accelerator.prepare(torch.nn.BatchNorm1d(4))
if accelerator.is_main_process:
    model(torch.ones(2, 4))
"""
SCRIPTS = {
    "a model without buffers": ("layer = torch.nn.LayerNorm", NORMALIZED, "DDP402 info"),
    "a model with buffers": ("layer = torch.nn.BatchNorm1d", NORMALIZED, "DDP402 warning"),
    "a model that Accelerate wraps": ("", PREPARED, "DDP402 warning"),
    "a model of which Accelerate may make an engine": (
        "offloads = torch.nn.Identity  # or the CPU's, with DeepSpeed",
        PREPARED,
        "DDP402 info",
    ),
    "a state chosen by a condition that is not the wrapper's": (
        "multi = os.environ.get('MULTI')",
        """
dist.init_process_group("nccl")
ddp = DDP(torch.nn.Linear(1, 1))
state = ddp.module.state_dict() if multi else ddp.state_dict()
if dist.get_rank() == 0:
    if multi:
        torch.save(ddp.module.state_dict(), "other.pt")
    else:
        torch.save(ddp.state_dict(), "other.pt")
    torch.save(state, "model.pt")
dist.destroy_process_group()
""",
        "DDP501 info",
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


@pytest.mark.parametrize("name", SCRIPTS)
def test_real_code_is_read_as_it_is_meant(name: str, lint: Any) -> None:
    before, script, told = SCRIPTS[name]
    code, _, severity = told.partition(" ")
    found = lint(lint.imports + before + "\n" + script).of(code)
    assert set(found.severities) == ({severity} if severity else set())


def test_a_project_root_may_be_a_package(lint: Any) -> None:
    """`benchmark/setup.py` beside `benchmark/gpu/common.py`, imported as `benchmark.gpu.common`."""
    common = "import torch.distributed as dist\ndef run():\n    dist.barrier()\n    dist.destroy_process_group()\n"
    start = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    script = f"{start}from benchmark.gpu.common import run\nrun()\n"
    lint.write({"benchmark/setup.py": "", "benchmark/gpu/common.py": common, "benchmark/gpu/train.py": script})
    assert lint.run("benchmark/gpu/train.py").of("DDP101") == []
