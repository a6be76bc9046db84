"""DDP301: a class of the program that hands attributes through leads past the wrapper, as `.module` does."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
from torch import nn

dist.init_process_group("gloo")


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(2, 1)

    def encode(self, x):
        return self.first(x)

    def decode(self, z):
        return self.second(z)

    def forward(self, x):
        return self.decode(self.encode(x))


class Through(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self._inner = inner

    def forward(self, *args):
        return self._inner(*args)

    def __getattr__(self, name):
        if name == "_inner":
            return super().__getattr__(name)
        try:
            return getattr(self._inner, name)
        except AttributeError:
            return getattr(self._inner.module, name)


class Agent:
    def __init__(self, model, loss):
        self.model = model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loss = torch.compile(getattr(self, loss))

    def by_methods(self, x):
        return self.model.decode(self.model.encode(x)).mean()

    def by_forward(self, x):
        return self.model(x).mean()

    def step(self, x):
        self.loss(x).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


"""
TAIL = """
for step in range(3):
    agent.step(torch.rand(2, 4))
"""


@pytest.mark.parametrize(("loss", "found"), [("by_methods", ["error"]), ("by_forward", [])])
def test_methods_that_are_handed_through_bypass_the_wrapper(lint: Any, loss: str, found: list[str]) -> None:
    body = HEAD + f"agent = Agent(Through(DDP(Coder())), '{loss}')" + TAIL
    assert lint.body(body, "DDP301").severities == found


def test_each_name_that_is_handed_through_is_its_own(lint: Any) -> None:
    """Asked for other methods often, it does not give them to the name that is asked for next."""
    names = "".join(f"    def ask{i}(self, x):\n        return self, x\n\n" for i in range(45))
    names += "    def is_main(self):\n        return dist.get_rank() == 0\n\n"
    asks = "".join(f"model.ask{i}(torch.ones(2, 4))\n" for i in range(45))
    body = HEAD.replace("    def encode", names + "    def encode")
    body += "model = Through(DDP(Coder()))\n" + asks + "if model.is_main():\n    dist.barrier()\n"
    assert lint.body(body, "DDP401").severities == ["error"]


def test_a_loss_of_more_parts_than_are_kept_is_a_warning(lint: Any) -> None:
    """The wrapper may be among the parts of the loss that are left out."""
    makers = "".join(f"class P{i}:\n    weight = {i}\n\n\n" for i in range(14))
    parts = "[" + ", ".join(f"P{i}()" for i in range(14)) + "]"
    body = (
        HEAD + makers + "from losses import weighted\n\nwrapper = DDP(Coder())\n"
        "optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)\nfor step in range(3):\n"
        f"    z = wrapper.module.encode(torch.rand(2, 4))\n    weighted(z, {parts}).backward()\n    optimizer.step()\n"
    )
    assert lint.body(body, "DDP301").severities == ["warning"]
