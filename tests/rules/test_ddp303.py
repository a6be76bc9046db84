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
