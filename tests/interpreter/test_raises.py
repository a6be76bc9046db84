"""Ranks that raise and are caught go on with the others; those that leave in another way do not."""

from __future__ import annotations

from typing import Any

import pytest

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


def hangs(lint: Any, *, leaves: str = "raise ValueError", inside: str = "x += 1", handler: str = "pass") -> bool:
    """Whether a collective on some ranks is found: behind the `try`, or within it where ``inside`` is one."""
    behind = "x += 1" if inside == REDUCE else REDUCE
    script = SCRIPT.format(leaves=leaves, inside=inside, handler=handler, behind=behind)
    return "DDP401" in lint(script).codes


@pytest.mark.parametrize("handler", ["pass", "print('skipped')", "x += 2"])
def test_a_rank_whose_raise_is_caught_meets_the_others_behind_it(lint: Any, handler: str) -> None:
    assert not hangs(lint, handler=handler)


@pytest.mark.parametrize("handler", ["raise", "continue", "break", "return", "sys.exit(1)"])
def test_a_rank_whose_handler_leaves_does_not_meet_them(lint: Any, handler: str) -> None:
    assert hangs(lint, handler=handler)


@pytest.mark.parametrize("leaves", ["continue", "break", "return", "sys.exit(1)"])
def test_a_rank_that_leaves_without_a_raise_is_not_caught(lint: Any, leaves: str) -> None:
    assert hangs(lint, leaves=leaves)


def test_what_the_others_do_in_the_try_is_done_without_the_rank_that_raised(lint: Any) -> None:
    assert hangs(lint, inside=REDUCE)
