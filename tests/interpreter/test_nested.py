"""Collectives deep in a network: the forwards above them name no function of ours, and are walked all the same."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
from torch import nn

dist.init_process_group("gloo")


class Balance(nn.Module):
    def forward(self, x):
        load = x.mean(0)
        if dist.get_rank() == 0:
            dist.all_reduce(load)
        return x + load


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mixture = Balance()

    def forward(self, x):
        hidden = self.norm(x)
        if self.training:
            hidden = hidden * 2
        return x + self.mixture(hidden)


"""
HELD = {
    "in a field": ("self.block = Block(4)", "x = self.block(x)"),
    "in a list": (
        "self.blocks = nn.ModuleList([Block(4) for _ in range(2)])",
        "for block in self.blocks:\n x = block(x)",
    ),
    "put into a list": (
        "self.blocks = nn.ModuleList()\nfor _ in range(2):\n self.blocks.append(Block(4))",
        "for block in self.blocks:\n x = block(x)",
    ),
    "by a method": ("self.block = Block(4)", "x = self.encode(x)"),
}
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
{made}

    def encode(self, x):
        hidden = self.first(x)
        hidden = hidden + 1
        return self.block(hidden)

    def forward(self, x):
        x = self.first(x)
        x = x + 1
{used}
        return x


model = {model}
model(torch.ones(2, 4)).sum().backward()
"""


def _indented(text: str) -> str:
    return "\n".join(
        " " * 8 + line.replace(" ", "    ", 1) if line[0] == " " else " " * 8 + line for line in text.split("\n")
    )


@pytest.mark.parametrize("model", ["Net()", "nn.parallel.DistributedDataParallel(Net())"], ids=["alone", "wrapped"])
@pytest.mark.parametrize("held", HELD.values(), ids=HELD.keys())
def test_what_modules_deep_in_a_network_do_is_met(lint: Any, held: tuple[str, str], model: str) -> None:
    made, used = map(_indented, held)
    assert lint.body(HEAD + NET.format(made=made, used=used, model=model), "DDP401").severities == ["error"]
