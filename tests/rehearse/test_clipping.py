"""What is clipped: a scaled gradient, that of a micro-batch, that of one rank before the average (DDP314)."""

from __future__ import annotations

from typing import Any

import pytest


def test_clipping_of_each_micro_batch_is_named(recorded: Any) -> None:
    recorded.add(0, "clip", scaled=False, site=recorded.site(26), norm=1.0)
    recorded.add(0, "grown", site=recorded.site(26))
    assert recorded.rated() == [("DDP314", 26, "warning")]


def test_clipping_of_scaled_gradients_is_named(recorded: Any) -> None:
    recorded.add(0, "clip", scaled=True, site=recorded.site(26))
    assert recorded.found() == {("DDP314", 26)}


@pytest.mark.parametrize(("norms", "word"), [((3.0, 4.0), "violated"), ((3.0, 3.0), "not observed")])
def test_clipping_before_the_ranks_average_by_hand(recorded: Any, norms: Any, word: str) -> None:
    recorded.optimizer(names=(None, None))
    for rank in (0, 1):
        recorded.backward(rank, armed=False)
        recorded.add(rank, "clip", scaled=False, site=recorded.site(24), norm=norms[rank])
        for _ in range(2):
            recorded.call(rank, "all_reduce", 26, shape=[2], reduce="SUM")
        recorded.step(rank)
    assert recorded.judged().verdicts["DDP314"].word == word
