"""DDP303: modules that reach the wrapper by ways which real code takes are part of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.lint import check

HEAD = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
head = nn.Linear(4, 1)


class Net(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.parts = nn.ModuleList(parts)
        self.size = len(parts)


"""
TAIL = """
optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": head.parameters()}], lr=0.1)
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
INSIDE = {
    "constructor": "model = DDP(Net(head))",
    "keyword": "class K(nn.Module):\n    def __init__(self, head):\n"
    "        super().__init__()\n        self.head = head\nmodel = DDP(K(head=head))",
    "sequential": "model = DDP(nn.Sequential(nn.Linear(4, 4), head))",
    "list": "layers = [nn.Linear(4, 4)]\nlayers.append(head)\nmodel = DDP(nn.Sequential(*layers))",
    "dict": "class All(nn.Module):\n    def __init__(self, heads):\n        super().__init__()\n"
    "        self.heads = nn.ModuleDict()\n        self.heads.update(heads)\nmodel = DDP(All({'a': head}))",
    "container": "layers = nn.ModuleList()\nlayers.append(head)\nmodel = DDP(layers)",
    "attribute": "net = Net()\nnet.head = head\nmodel = DDP(net)",
    "add_module": "net = Net()\nnet.add_module('head', head)\nmodel = DDP(net)",
    "item": "heads = nn.ModuleDict()\nheads['a'] = head\nmodel = DDP(heads)",
    "own wrapper": "model = DDP(Net())\nhead = DDP(head)",
    "unknown model": "import timm\nmodel = DDP(timm.create_model('x'))",
    "reduced by hand": "model = DDP(Net())\nfor p in head.parameters():\n    dist.all_reduce(p.grad)",
    "moved": "net = Net(head).to('cpu')\nmodel = DDP(net)",
    "compiled": "model = DDP(torch.compile(Net(head)))",
    "converted": "model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(Net(head)))",
    "in a trainer": "class T:\n    def __init__(self, net):\n        self.net = net\n        self.model = DDP(net)\n"
    "model = T(Net(head)).model",
}


@pytest.fixture
def codes(tmp_path: Path):  # type: ignore[no-untyped-def]
    """The codes on a script."""

    def run(script: str) -> set[str]:
        (tmp_path / "train.py").write_text(script)
        outcome = check([str(tmp_path / "train.py")], Settings(cache_dir=None, root=str(tmp_path)))
        return {finding.code for finding in outcome.findings}

    return run


@pytest.mark.parametrize("body", INSIDE.values(), ids=INSIDE.keys())
def test_a_module_inside_a_wrapper_is_left_alone(codes, body: str) -> None:  # type: ignore[no-untyped-def]
    assert "DDP303" not in codes(HEAD + body + TAIL)


def test_a_module_outside_is_found(codes) -> None:  # type: ignore[no-untyped-def]
    assert "DDP303" in codes(HEAD + "model = DDP(Net())" + TAIL)
