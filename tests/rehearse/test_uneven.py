"""Ranks that take different numbers of batches from a loader that they train on (DDP408)."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_rank_with_a_batch_more_is_uneven(training: Any) -> None:
    training.begin()
    for rank in (0, 1):
        for count in range(2 + rank):
            training.batch(rank, 0, count, [rank * 8 + count])
            training.train_on(rank)
        training.add(rank, "iterated", loader=0, turn=0, batches=2 + rank, exhausted=True)
    assert ("DDP408", 12) in training.found()


@pytest.mark.parametrize("hangs", [False, True])
def test_a_batch_that_is_dropped_since_another_rank_has_none_is_not_uneven(training: Any, hangs: bool) -> None:
    """Where a rank hangs it may be in a forward of which nothing is seen yet."""
    training.begin()
    for rank in (0, 1):
        for count in range(2 + rank):
            training.batch(rank, 0, count, [rank * 8 + count])
            if count < 2:
                training.train_on(rank)
    training.add(0, "iterated", loader=0, turn=0, batches=2, exhausted=True)
    if hangs:
        training.hang()
    assert (("DDP408", 12) in training.found()) is hangs


@pytest.mark.parametrize("joined", [True, False])
def test_ranks_may_run_out_one_after_the_other_within_join(training: Any, joined: bool) -> None:
    if joined:
        training.every("join", entered=True)
    training.begin()
    for rank, batches in ((0, 1), (1, 2)):
        for count in range(batches):
            training.batch(rank, 0, count, [4 * rank + count])
            training.calls += 1
            common = {"group": "0", "ranks": [0, 1], "waits": True, "sequence": not joined}
            training.add(rank, "backward", n=training.calls, armed=[0], sync=True, site=training.site(25), **common)
            training.add(rank, "done", n=training.calls)
            training.step(rank)
        training.add(rank, "iterated", loader=0, turn=0, batches=batches, exhausted=True)
    if joined:
        training.every("join", entered=False)
    assert training.found() == (set() if joined else {("DDP408", 12)})
