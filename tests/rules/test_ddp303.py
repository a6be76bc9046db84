"""DDP303: modules that reach the wrapper by ways which real code takes are part of it."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
from torch import nn

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


@pytest.mark.parametrize("body", INSIDE.values(), ids=INSIDE.keys())
def test_a_module_inside_a_wrapper_is_left_alone(lint: Any, body: str) -> None:
    assert "DDP303" not in lint.body(HEAD + body + TAIL).codes


def test_a_module_outside_is_found(lint: Any) -> None:
    assert "DDP303" in lint.body(HEAD + "model = DDP(Net())" + TAIL).codes


SHARED = """
import tools
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
data = TensorDataset(torch.ones(80, 4))
sampler = DistributedSampler(data)
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (batch,) in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        {between}
        optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean)
dist.destroy_process_group()
"""
NEVER = ["pass", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "print(loss.item())"]
SENT = [
    "for p in model.parameters(): dist.all_reduce(p.grad)",
    "grads = [p.grad for p in model.parameters()]\n        dist.all_reduce(torch.cat([g.view(-1) for g in grads]))",
    "tools.average(model)",
    "[dist.all_reduce(p.data) for p in model.parameters()]",
    "whole = torch.cat([p.data.view(-1) for p in model.parameters()])\n        dist.isend(whole, 0)",
]


@pytest.mark.parametrize(("between", "count"), [*((each, 1) for each in NEVER), *((each, 0) for each in SENT)])
def test_ranks_that_share_the_data_out_and_average_nothing_are_told(lint: Any, between: str, count: int) -> None:
    assert len(lint(SHARED.replace("{between}", between), "DDP303").codes) == count
