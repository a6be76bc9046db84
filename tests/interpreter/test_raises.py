"""Ranks that raise and are caught go on with the others; those that leave in another way do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.lint import check

SCRIPT = """
import sys
import torch
import torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = torch.ones(1)
    for step in range(10):
        try:
            if rank == 1:
                {leaves}
            {inside}
        except ValueError:
            {handler}
        {behind}
    dist.destroy_process_group()

main()
"""
REDUCE = "dist.all_reduce(x)"


def hangs(path: Path, *, leaves: str = "raise ValueError", inside: str = "x += 1", handler: str = "pass") -> bool:
    """Whether a collective on some ranks is found: behind the `try`, or within it where ``inside`` is one."""
    behind = "x += 1" if inside == REDUCE else REDUCE
    path.joinpath("train.py").write_text(
        SCRIPT.format(leaves=leaves, inside=inside, handler=handler, behind=behind), encoding="utf-8"
    )
    outcome = check([str(path / "train.py")], Settings(cache_dir=None, root=str(path)))
    return "DDP401" in {finding.code for finding in outcome.findings}


@pytest.mark.parametrize("handler", ["pass", "print('skipped')", "x += 2"])
def test_a_rank_whose_raise_is_caught_meets_the_others_behind_it(tmp_path: Path, handler: str) -> None:
    assert not hangs(tmp_path, handler=handler)


@pytest.mark.parametrize("handler", ["raise", "continue", "break", "return", "sys.exit(1)"])
def test_a_rank_whose_handler_leaves_does_not_meet_them(tmp_path: Path, handler: str) -> None:
    assert hangs(tmp_path, handler=handler)


@pytest.mark.parametrize("leaves", ["continue", "break", "return", "sys.exit(1)"])
def test_a_rank_that_leaves_without_a_raise_is_not_caught(tmp_path: Path, leaves: str) -> None:
    assert hangs(tmp_path, leaves=leaves)


def test_what_the_others_do_in_the_try_is_done_without_the_rank_that_raised(tmp_path: Path) -> None:
    assert hangs(tmp_path, inside=REDUCE)
