"""Whose way out is on its own loss, and which of those the others wait for."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
loader = DataLoader(range(64), sampler=DistributedSampler(range(64), shuffle=False))
"""
PLAIN = 'dist.init_process_group("gloo")\nnet = torch.nn.Linear(1, 1)\n'
WRAPPED = PLAIN + "net = DDP(net)\n"
ACCELERATE = (
    "from accelerate import Accelerator\nfrom models import build\n"
    "accelerator = Accelerator()\nnet = accelerator.prepare(build())\n"
)
FABRIC = (
    "from lightning.fabric import Fabric\nfrom models import build\nfabric = Fabric()\nnet = fabric.setup(build())\n"
)
ASKED_BEFORE = """
for batch in loader:
    loss = net(batch).sum()
    bad = not torch.isfinite(loss)
{}    if bad:
        continue
    loss.backward()
"""
LOOP = "for batch in loader:\n    loss = {}\n    if torch.isnan({}):\n        continue\n    {}\n"
BY_HAND = "loss.backward()\n    for each in net.parameters():\n        dist.{}(each.{})"

OWN = {
    "accelerate": ACCELERATE + LOOP.format("net(batch).sum()", "loss", "accelerator.backward(loss)"),
    "fabric": FABRIC + LOOP.format("net(batch).sum()", "loss", "fabric.backward(loss)"),
    "divided by a count of all ranks": WRAPPED
    + LOOP.format(
        "net(batch).sum()\n    count = batch.sum()\n    dist.all_reduce(count)\n    loss = loss / count",
        "loss",
        "loss.backward()",
    ),
    "a tensor's own gather": WRAPPED
    + LOOP.format("net(batch).log().gather(dim=-1, index=batch).sum()", "loss", "loss.backward()"),
    "gathered out of place": ACCELERATE
    + LOOP.format("net(batch).sum()\n    print(accelerator.gather(loss))", "loss", "accelerator.backward(loss)"),
    "asked before": WRAPPED + ASKED_BEFORE.format(""),
    "averaged by hand": PLAIN + LOOP.format("net(batch).sum()", "loss", BY_HAND.format("all_reduce", "grad")),
}
SHARED = {
    "reduced": ACCELERATE + LOOP.format("net(batch).sum()", "accelerator.reduce(loss)", "accelerator.backward(loss)"),
    "all-reduced": WRAPPED
    + LOOP.format("net(batch).sum()\n    dist.all_reduce(loss)", "loss / len(batch)", "loss.backward()"),
    "asked before and agreed": WRAPPED
    + ASKED_BEFORE.format("    bad = torch.tensor(float(bad))\n    dist.all_reduce(bad, op=dist.ReduceOp.MAX)\n"),
    "nobody waits": PLAIN + LOOP.format("net(batch).sum()", "loss", "loss.backward()\n    dist.all_reduce(loss.data)"),
    "parameters sent once": PLAIN + LOOP.format("net(batch).sum()", "loss", BY_HAND.format("broadcast", "data")),
}


def found(lint: Any, script: str) -> set[str]:
    lint.write(train=HEAD + script)
    return {finding.severity for finding in lint.run("train.py") if finding.code == "DDP404"}


@pytest.mark.parametrize("script", OWN.values(), ids=OWN)
def test_a_way_out_on_a_rank_s_own_loss(lint: Any, script: str) -> None:
    assert found(lint, script) & {"error", "warning"}


@pytest.mark.parametrize("script", SHARED.values(), ids=SHARED)
def test_a_way_out_that_all_ranks_take_or_that_nobody_waits_for(lint: Any, script: str) -> None:
    assert found(lint, script) == set()


def test_a_loss_that_something_shared_went_into_is_no_error(lint: Any) -> None:
    assert found(lint, OWN["divided by a count of all ranks"]) == {"warning"}


CALLBACKS = """
class Stops:
    def on_step(self, loss):
        dist.all_reduce(loss)

class Tells:
    def on_step(self, loss):
        if dist.get_rank() != 0:
            return
        {}

for step in range(3):
    for callback in [Tells(), Stops()]:
        callback.on_step(torch.ones(1))
"""


def test_a_callback_that_returns_leaves_no_other_that_is_called_at_the_same_place(lint: Any) -> None:
    assert not lint(HEAD + WRAPPED + CALLBACKS.format("print(loss)")).of("DDP404")
    assert lint(HEAD + WRAPPED + CALLBACKS.format("dist.all_reduce(loss)")).of("DDP404", "DDP401")


FOUND = """
for batch in loader:
    batch, found = batch
    if not {}:
        continue
    net(batch).sum().backward()
"""


@pytest.mark.parametrize("asked", ["all(found)", "found.all()", "torch.all(found)", "any(found)"])
def test_a_way_out_on_what_a_rank_s_own_batch_lacks(lint: Any, asked: str) -> None:
    assert found(lint, WRAPPED + FOUND.format(asked)) == {"warning"}


@pytest.mark.parametrize("asked", ["all(name in found for name in ('x', 'y'))", "all(options)", "all([])"])
def test_what_is_asked_of_all_batches_alike_is_no_way_out_of_one_rank(lint: Any, asked: str) -> None:
    assert found(lint, "options = [1]\n" + WRAPPED + FOUND.format(asked)) == set()
