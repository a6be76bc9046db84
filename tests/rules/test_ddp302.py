"""Where a gradient ends in a collective, how bad that is, and where it does not."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
import torch.nn as nn
import torch.nn.functional as F

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
model = DDP(nn.Linear(4, 4))
x, y = torch.ones(8, 4), torch.arange(8)

def gather(tensor):
    parts = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)

"""


ERRORS = {
    "a term of gathered rows alone": (
        "z = model(x)\nloss = F.cross_entropy(z, y) + 0.1 * gather(z).std()\nloss.backward()"
    ),
    "the term first": (
        "z = model(x)\nloss = 0.1 * gather(z).std()\nloss += F.cross_entropy(z, y)\n(loss / 4).backward()"
    ),
    "nothing else": "z = model(x)\nloss = gather(z).std()\nloss.backward()",
    "of a module": (
        "class Spread(nn.Module):\n    def forward(self, rows):\n        return rows.pow(2).mean()\nspread = Spread()\n"
        "z = model(x)\nloss = z.mean() + spread(gather(z))\nloss.backward()"
    ),
    "into one tensor": (
        "z = model(x)\neverybody = torch.empty(16, 4)\ndist.all_gather_into_tensor(everybody, z)\n"
        "loss = z.mean() + everybody.std()\nloss.backward()"
    ),
}
WARNINGS = {
    "local rows against gathered ones": "z = model(x)\nloss = (z @ gather(z).T).mean()\nloss.backward()",
    "in a class": (
        "class Loss(nn.Module):\n    def forward(self, out):\n        z = out['z']\n        everybody = gather(z)\n"
        "        return {'loss': (z @ everybody.T).mean()}\ncriterion = Loss()\n"
        "losses = criterion({'z': model(x)})\nlosses['loss'].backward()"
    ),
    "scaled": "z = model(x)\nloss = (z @ gather(z).T).mean() * world_size\nloss.backward()",
    "a raw sum of moments": (
        "z = model(x)\nmean = z.sum(0)\ndist.all_reduce(mean)\nw = model(x + 1)\nloss = (w * (z - mean)).sum()\n"
        "loss.backward()"
    ),
    "with a scaler": (
        "scaler = torch.amp.GradScaler()\nz = model(x)\nloss = (z @ gather(z).T).mean()\nscaler.scale(loss).backward()"
    ),
}
ADVICE = {
    "own rows put back": (
        "z = model(x)\nparts = [torch.zeros_like(z) for _ in range(world_size)]\ndist.all_gather(parts, z)\n"
        "parts[rank] = z\nloss = torch.cat(parts).std()\nloss.backward()"
    ),
    "own rows concatenated": (
        "z = model(x)\nparts = [torch.zeros_like(z) for _ in range(world_size)]\ndist.all_gather(parts, z)\n"
        "everybody = torch.cat([z] + parts[:rank] + parts[rank + 1:])\nloss = (z @ everybody.T).mean()\nloss.backward()"
    ),
    "own rows put into a tensor": (
        "z = model(x)\neverybody = gather(z)\neverybody[rank * 8:(rank + 1) * 8] = z\n"
        "loss = (everybody @ everybody.T).mean()\nloss.backward()"
    ),
    "an averaged loss": "loss = model(x).mean()\ndist.all_reduce(loss)\nloss /= world_size\nloss.backward()",
    "behind an option": (
        "import argparse\nargs = argparse.ArgumentParser().parse_args()\nz = model(x)\nrows = z\nif args.share:\n"
        "    rows = gather(z)\nloss = (z @ rows.T).mean()\nloss.backward()"
    ),
    "a model that detaches": (
        "class Net(nn.Module):\n    def forward(self, x):\n        return x, x.detach()\nnet = DDP(Net())\n"
        "q, k = net(x)\nloss = (q @ gather(k).T).mean()\nloss.backward()"
    ),
}
RIGHT = {
    "in place in the forward of an autograd Function": (
        "class Mean(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, t):\n"
        "        dist.all_reduce(t)\n        return t / world_size\n    @staticmethod\n"
        "    def backward(ctx, grad):\n        return grad\n"
        "z = model(x)\nloss = Mean.apply(z.mean())\nloss = loss + Mean.apply(z).std()\nloss.backward()"
    ),
    "detached": "z = model(x)\nloss = (z @ gather(z.detach()).T).mean()\nloss.backward()",
    "data": "z = model(x)\nloss = (z @ gather(z.data).T).mean()\nloss.backward()",
    "no_grad function": (
        "@torch.no_grad()\ndef everybody(t):\n    return gather(t)\nz = model(x)\nloss = (z @ everybody(z).T).mean()\n"
        "loss.backward()"
    ),
    "labels": "z = model(x)\nloss = F.cross_entropy(z, y) * (gather(y) > 3).sum()\nloss.backward()",
    "weights without a gradient": (
        "z = model(x)\neverybody = gather(z)\nwith torch.no_grad():\n    weights = (everybody @ z.T).softmax(1)\n"
        "loss = (weights.sum(0) * z.sum(1)).mean()\nloss.backward()"
    ),
    "logging": "z = model(x)\nloss = z.mean()\nprint(gather(z).norm())\nloss.backward()",
    "logging of a module": (
        "class Loss(nn.Module):\n    def forward(self, z):\n        everybody = gather(z)\n"
        "        return {'loss': z.mean(), 'norm': everybody.norm()}\nlosses = Loss()(model(x))\n"
        "losses['loss'].backward()"
    ),
    "put back and scaled": (
        "z = model(x)\nparts = [torch.zeros_like(z) for _ in range(world_size)]\ndist.all_gather(parts, z)\n"
        "parts[rank] = z\nloss = torch.cat(parts).std() * world_size\nloss.backward()"
    ),
    "a queue": (
        "bank = []\ndef enqueue(t):\n    bank.append(gather(t))\nz = model(x)\nenqueue(z)\n"
        "loss = (z @ torch.cat(bank).T).mean()\nloss.backward()"
    ),
    "a teacher": (
        "teacher = DDP(nn.Linear(4, 4))\nz = model(x)\nloss = (z @ gather(teacher(x)).T).mean()\nloss.backward()"
    ),
    "a count": (
        "z = model(x)\ncount = (z > 0).sum().float()\ndist.all_reduce(count)\nloss = z.sum() / count * world_size\n"
        "loss.backward()"
    ),
    "summed in place for the log": (
        "def reduced(t):\n    dist.all_reduce(t)\n    return t / world_size\nloss = model(x).mean()\n"
        "shown = reduced(loss)\nloss.backward()\nprint(shown)"
    ),
    "averaged by the collective": (
        "loss = model(x).mean()\ndist.all_reduce(loss, op=dist.ReduceOp.AVG)\nloss.backward()"
    ),
    "after the backward": (
        "loss = model(x).mean()\nloss.backward()\ndist.all_reduce(loss)\nloss /= world_size\nprint(loss)"
    ),
    "a copy for the log": (
        "def reduced(t):\n    t = t.clone()\n    dist.all_reduce(t)\n    return t / world_size\n"
        "loss = model(x).mean()\n"
        "shown = reduced(loss)\nloss.backward()\nprint(shown)"
    ),
    "nn.functional": (
        "from torch.distributed.nn import all_gather\nz = model(x)\nloss = (z @ torch.cat(all_gather(z)).T).mean()\n"
        "loss.backward()"
    ),
    "fabric": (
        "from lightning.fabric import Fabric\nfabric = Fabric(devices=2)\nz = model(x)\n"
        "loss = (z @ fabric.all_gather(z, sync_grads=True).T).mean()\nfabric.backward(loss)"
    ),
}


@pytest.mark.parametrize("body", ERRORS.values(), ids=ERRORS.keys())
def test_a_loss_that_trains_nothing_is_an_error(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body, "DDP302").severities == ["error"]


@pytest.mark.parametrize("body", WARNINGS.values(), ids=WARNINGS.keys())
def test_a_gradient_of_which_a_share_is_lost_is_a_warning(lint: Any, body: str) -> None:
    assert set(lint.body(HEAD + body, "DDP302").severities) == {"warning"}


@pytest.mark.parametrize("body", ADVICE.values(), ids=ADVICE.keys())
def test_a_gradient_of_the_wrong_size_is_advice(lint: Any, body: str) -> None:
    assert set(lint.body(HEAD + body, "DDP302").severities) == {"info"}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT.keys())
def test_what_needs_no_gradient_is_left_alone(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body, "DDP302").severities == []
