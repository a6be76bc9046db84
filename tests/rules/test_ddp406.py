"""Which results can be thrown away, and which cannot."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dist_nn
from accelerate import Accelerator

dist.init_process_group("gloo")
rank = dist.get_rank()
accelerator = Accelerator()
x = torch.ones(8)
"""


LOST = {
    "functional": "funcol.all_reduce(x, 'sum', dist.group.WORLD)\nprint(x)",
    "functional, gathered": "funcol.all_gather_tensor(x, 0, dist.group.WORLD)\nprint(x)",
    "differentiable": "dist_nn.reduce(x, 0)\nprint(x)",
    "gathered": "accelerator.gather(x)\nprint(x)",
    "of an attribute": (
        "class T:\n    def f(self):\n        accelerator.reduce(self.loss)\n        print(self.loss)\n"
        "t = T()\nt.loss = x\nt.f()"
    ),
    "never waited for": "def f(t):\n    handle = dist.all_reduce(t, async_op=True)\n    return t\nprint(f(x))",
    "no handle": "def f(t):\n    dist.all_reduce(t, async_op=True)\n    return t\nprint(f(x))",
    "on a condition": "if x.sum() > 0:\n    accelerator.reduce(x)\nprint(x)",
}
KEPT = {
    "assigned": "x = accelerator.gather(x)\nprint(x)",
    "in place": "dist.all_reduce(x)\nprint(x)",
    "differentiable, into a list": "y = [torch.empty(4)] * 2\ndist_nn.all_to_all(y, list(x.split(4)))\nprint(y)",
    "differentiable, into a tensor": "y = torch.empty(8)\ndist_nn.all_to_all_single(y, x)\nprint(x, y)",
    "differentiable, scattered": "y = torch.empty(4)\ndist_nn.reduce_scatter(y, list(x.split(4)))\nprint(x, y)",
    "functional, in place": "funcol.all_reduce_inplace(x)\nprint(x)",
    "given on": "print(accelerator.gather(x))",
    "returned": "def f(t):\n    return accelerator.reduce(t)\nprint(f(x))",
    "a way to write a barrier": "accelerator.gather(torch.zeros(1))\nprint(x)",
    "the tensor is not used again": "accelerator.reduce(x)",
    "waited for": "handle = dist.all_reduce(x, async_op=True)\nhandle.wait()",
    "waited for at once": "dist.all_reduce(x, async_op=True).wait()",
    "in a list": "handles = []\nhandles.append(dist.all_reduce(x, async_op=True))\nfor h in handles:\n    h.wait()",
    "handle kept in a field": (
        "class T:\n    pass\nt = T()\nt.handle = dist.all_reduce(x, async_op=True)\nt.handle.wait()"
    ),
    "handle returned": "def f(t):\n    handle = dist.all_reduce(t, async_op=True)\n    return handle\nf(x).wait()",
    "synchronized": (
        "def f(t):\n    dist.all_reduce(t, async_op=True)\n    torch.cuda.synchronize()\n    return t\nprint(f(x))"
    ),
    "not asynchronous": "dist.all_reduce(x, async_op=False)\nprint(x)",
}


@pytest.mark.parametrize("body", LOST.values(), ids=LOST.keys())
def test_a_lost_result_is_found(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body, "DDP406").severities == ["error"]


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_a_result_in_use_is_left_alone(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body, "DDP406").severities == []
