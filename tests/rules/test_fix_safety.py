"""A fix is safe only where it can lose nothing: what is done behind it, with the file, or beside it, is looked at."""

from __future__ import annotations

from typing import Any

import pytest


def is_safe(lint: Any, script: str, code: str) -> bool:
    """Whether the fix of the one finding of a rule is called safe."""
    (finding,) = lint(lint.imports + script, code)
    assert finding.fix is not None
    return finding.fix.safe


TRAINED = """
def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
BEFORE
if __name__ == "__main__":
    main()
"""
GOES_ON = {
    "nothing": ("", "", True),
    "a handler of the end": ("import atexit\natexit.register(print)", "", False),
    "a thread": ("import threading\nthreading.Thread(target=print).start()", "", False),
    "a checkpoint in the background": ("from torch.distributed.checkpoint import async_save", "", False),
    "code behind the main block": ("", "dist.barrier()\n", False),
}


@pytest.mark.parametrize("what", GOES_ON)
def test_a_group_is_destroyed_safely_only_where_nothing_goes_on(lint: Any, what: str) -> None:
    before, behind, safe = GOES_ON[what]
    assert is_safe(lint, TRAINED.replace("BEFORE", before) + behind, "DDP101") is safe


READ_AGAIN = {
    "never": ("", "", True),
    "before the first": ('torch.load("start.pt")', "", True),
    "in the next turn": ("", 'torch.load("last.pt")', False),
    "by whoever looks for files": ('import glob\nglob.glob("*.pt")', "", False),
}


@pytest.mark.parametrize("when", READ_AGAIN)
def test_a_save_is_guarded_safely_only_where_no_rank_reads_it(lint: Any, when: str) -> None:
    before, within, safe = READ_AGAIN[when]
    script = f"""
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
{before}
for epoch in range(3):
    {within or "pass"}
    model(torch.ones(1, 2)).sum().backward()
    torch.save(model.module.state_dict(), "last.pt")
"""
    assert is_safe(lint, script, "DDP502") is safe


@pytest.mark.parametrize(
    ("value", "safe"), [("float(loss.item())", True), ("meters.average(loss)", False), ("meter.mean()", False)]
)
def test_a_use_is_guarded_safely_only_where_nothing_unknown_is_called(lint: Any, value: str, safe: bool) -> None:
    script = f"""
import meters
from torch.utils.tensorboard import SummaryWriter
dist.init_process_group("gloo")
writer = SummaryWriter() if dist.get_rank() == 0 else None
model = DDP(torch.nn.Linear(2, 2))
loss = model(torch.ones(1, 2)).sum()
loss.backward()
writer.add_scalar("loss", {value}, 1)
"""
    assert is_safe(lint, script, "DDP405") is safe
