"""Fixes use names that are there in every run: with a single process, without a group, beside another `dist`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from validate_ddp import fixing
from validate_ddp.config import Settings


@pytest.fixture
def fixed(lint: Any) -> Any:
    """Carries out all fixes of one rule on a script: what becomes of it."""

    def carry_out(script: str, code: str, head: str | None = None) -> str:
        script = (lint.imports if head is None else head) + script
        lint(script)
        result = fixing.fix(["train.py"], Settings(**lint.settings, select=(code,)), None, unsafe=True, write=False)
        return result.changes[0].after.decode() if result.changes else script

    return carry_out


EPOCHS = {
    "    if hasattr(loader.sampler": """
def main(args):
    if args.distributed:
        dist.init_process_group("nccl")
    if args.distributed:
        sampler = DistributedSampler(range(8))
        loader = DataLoader(range(8), sampler=sampler)
    else:
        loader = DataLoader(range(8), shuffle=True)
    for epoch in range(3):
        for batch in loader:
            model(batch).sum().backward()
main(parse())
""",
    "    if hasattr(self.loader.sampler": """
class Trainer:
    def __init__(self, args):
        if args.distributed:
            dist.init_process_group("nccl")
            self.sampler = DistributedSampler(range(8))
            self.loader = DataLoader(range(8), sampler=self.sampler)
        else:
            self.loader = DataLoader(range(8), shuffle=True)
    def fit(self):
        for epoch in range(3):
            for batch in self.loader:
                model(batch).sum().backward()
Trainer(parse()).fit()
""",
}


@pytest.mark.parametrize("expected", EPOCHS)
def test_an_epoch_is_set_by_a_name_that_a_single_process_has_too(expected: str, fixed: Any) -> None:
    after = fixed(EPOCHS[expected], "DDP201")
    assert expected in after
    assert "hasattr(sampler" not in after
    assert "hasattr(self.sampler" not in after


def test_no_epoch_is_set_by_a_name_that_a_single_process_lacks(fixed: Any) -> None:
    script = """
def main(args):
    if args.distributed:
        dist.init_process_group("nccl")
        loader = DataLoader(range(8), sampler=DistributedSampler(range(8)))
    for epoch in range(3):
        if not args.distributed:
            continue
        for batch in loader:
            model(batch).sum().backward()
main(parse())
"""
    assert "set_epoch" not in fixed(script, "DDP201")


def test_a_module_of_the_script_asks_whether_there_is_a_group(lint: Any) -> None:
    saving = """
import torch
import torch.distributed as dist

class Keeper:
    def __init__(self, net):
        self.net = net

    def fit(self):
        for epoch in range(3):
            if epoch % 2 == 0:
                torch.save(self.net.state_dict(), f"model_{epoch}.pt")
"""
    script = 'from saving import Keeper\ndist.init_process_group("gloo")\nKeeper(DDP(model)).fit()\n'
    Path("saving.py").write_text(saving)
    lint(lint.imports + script)
    fixing.fix(["."], Settings(**lint.settings, select=("DDP502",)), None, unsafe=True, write=True)
    assert "if not dist.is_initialized() or dist.get_rank() == 0:\n" in Path("saving.py").read_text()


def test_a_file_with_another_dist_gets_the_whole_name(fixed: Any) -> None:
    head = "import my.dist as dist\nfrom torch.distributed import init_process_group\n"
    script = "def main():\n    init_process_group('gloo')\n\nmain()\n"
    assert fixed(script, "DDP101", head=head).endswith("torch.distributed.destroy_process_group()\n")
