"""Whose failure is swallowed, and whose is told or met by every rank alike."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(4, 4))
x = torch.ones(8, 4)
"""


SWALLOWED = {
    "bare": "try:\n    dist.all_reduce(x)\nexcept:\n    pass",
    "among others": "try:\n    dist.all_reduce(x)\nexcept (ValueError, RuntimeError):\n    x = x * 1",
    "in a helper": (
        "def mean(t):\n    dist.all_reduce(t)\n    return t\ndef safe(t):\n    try:\n        return mean(t)\n"
        "    except Exception:\n        return t\nprint(safe(x))"
    ),
    "in the forward of an autograd Function": (
        "class Gather(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, t):\n"
        "        out = [torch.zeros_like(t) for _ in range(world_size)]\n        try:\n"
        "            dist.all_gather(out, t)\n        except RuntimeError:\n            pass\n        return out\n"
        "print(Gather.apply(x))"
    ),
    "a batch left out": (
        "for i in range(9):\n    try:\n        loss = model(x).sum()\n        loss.backward()\n    except Exception:\n"
        "        continue"
    ),
    "out of memory on this rank": (
        "def step():\n    loss = model(x).sum()\n    loss.backward()\nfor i in range(9):\n    try:\n        step()\n"
        "    except torch.cuda.OutOfMemoryError:\n        torch.cuda.empty_cache()\n        continue"
    ),
    "accelerate": (
        "from accelerate import Accelerator\naccelerator = Accelerator()\ntry:\n    y = accelerator.gather(x)\n"
        "except Exception:\n    y = x"
    ),
    "a barrier of those who failed": (
        "for i in range(9):\n    try:\n        print(open(str(i)).read())\n    except Exception:\n"
        "        dist.barrier()"
    ),
    "a barrier far down in the handler": (
        "def report():\n    print(1)\n    dist.barrier()\ntry:\n    x.item()\nexcept RuntimeError:\n    report()"
    ),
}
LEFT_ALONE = {
    "raised again": "try:\n    dist.all_reduce(x)\nexcept Exception:\n    print(rank)\n    raise",
    "exits": "try:\n    dist.all_reduce(x)\nexcept Exception:\n    sys.exit(1)",
    "raised for others": (
        "for i in range(9):\n    try:\n        model(x).sum().backward()\n    except RuntimeError as e:\n"
        "        if 'memory' in str(e):\n            continue\n        raise"
    ),
    "interrupted": "try:\n    dist.all_reduce(x)\nexcept KeyboardInterrupt:\n    dist.barrier()",
    "what is missing on every rank": (
        "try:\n    dist.all_gather_into_tensor(x, x)\nexcept AttributeError:\n    dist.all_reduce(x)"
    ),
    "barrier on the way out": "try:\n    dist.barrier()\nexcept Exception:\n    pass",
    "imports": "try:\n    import apex\nexcept Exception:\n    dist.barrier()",
    "a local failure": "try:\n    y = x.item()\nexcept Exception:\n    y = 0\ndist.all_reduce(x)",
    "finally": "try:\n    dist.all_reduce(x)\nfinally:\n    print(rank)",
    "a backward without the wrapper": (
        "for i in range(9):\n    try:\n        torch.nn.Linear(4, 4)(x).sum().backward()\n"
        "    except Exception:\n        pass"
    ),
    "else": "try:\n    y = x.item()\nexcept Exception:\n    y = 0\nelse:\n    dist.all_reduce(x)",
}


@pytest.mark.parametrize("body", SWALLOWED.values(), ids=SWALLOWED.keys())
def test_a_failure_of_one_rank_is_found(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body, "DDP403").severities == ["warning"]


@pytest.mark.parametrize("body", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_what_ends_the_rank_or_happens_on_all_is_left_alone(lint: Any, body: str) -> None:
    assert lint.body(HEAD + body, "DDP403").severities == []


def test_a_try_around_the_whole_program_is_advice(lint: Any) -> None:
    body = (
        "def main():\n    try:\n        dist.init_process_group('gloo')\n        x = torch.ones(1)\n"
        "        dist.all_reduce(x)\n    except Exception as error:\n        print(error)\nmain()"
    )
    assert lint.body(body, "DDP403").severities == ["info"]


TRAINER = """
class Trainer:
    def run(self):
        self.model = DDP(torch.nn.Linear(4, 4))
        for i in range(9):
            self.epoch()

    def epoch(self):
        for i in range(9):
            self.step()

    def step(self):
        self.model(torch.ones(2, 4)).sum().backward()


def main():
    try:
        Trainer().run()
    except Exception:
        HANDLER


dist.init_process_group("gloo")
main()
"""


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        ("import pdb; pdb.post_mortem(sys.exc_info()[2])", ["info"]),
        ("print('failed')", ["info"]),
        ("print('failed'); sys.exit(1)", []),
        ("print('failed'); raise", []),
    ],
)
def test_so_is_a_try_around_the_whole_training(lint: Any, handler: str, found: list[str]) -> None:
    """However far below it the ranks wait for each other."""
    assert lint.body(TRAINER.replace("HANDLER", handler), "DDP403").severities == found
