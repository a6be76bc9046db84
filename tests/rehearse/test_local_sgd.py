"""Ranks that average parameters now and then in the place of gradients at each step, and those that only look so."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("shapes", [[[2], [2]], [[4]]])
def test_local_sgd_averages_parameters_and_not_gradients(training: Any, shapes: list[list[int]]) -> None:
    for number in range(4):
        for rank in (0, 1):
            training.train_on(rank, sync=False, armed=False, grads=[rank + 2 * number, 5], params=[rank, number])
        if number % 2:
            for shape in shapes:
                for rank in (0, 1):
                    training.call(rank, "all_reduce", 30, shape=shape, dtype="float32", reduce="SUM")
    assert training.word("DDP305") == "held"


def test_what_compares_the_ranks_after_the_last_step_is_no_local_sgd(training: Any) -> None:
    for number in range(2):
        for rank in (0, 1):
            training.train_on(rank, sync=False, armed=False, grads=[rank + 2 * number, 5])
    for rank in (0, 1, 0, 1):
        training.call(rank, "all_reduce", 30, shape=[2], dtype="float32", reduce="MAX")
    assert training.found() == {("DDP305", 22)}


@pytest.mark.parametrize(("averages", "told"), [(True, set()), (False, {("DDP303", 27)})])
def test_a_hook_that_leaves_gradients_apart_is_no_defect_where_models_are_averaged(
    training: Any, averages: bool, told: set[Any]
) -> None:
    for number in range(4):
        for rank in (0, 1):
            training.train_on(rank, grads=[rank + 2 * number, 5], params=[rank + 2 * number, 1])
        if number % 2 and averages:
            for rank in (0, 1):
                training.call(rank, "all_reduce", 30, shape=[4], dtype="float32", reduce="SUM")
    assert training.found() == told


@pytest.mark.parametrize(("steps", "told"), [(4, set()), (3, {("DDP303", 27)})])
def test_a_step_of_its_own_may_average_models_now_and_then(recorded: Any, steps: int, told: set[Any]) -> None:
    """Without a wrapper: after every other step the ranks hold the same again."""
    recorded.loader()
    recorded.optimizer(names=(None, None))
    for rank in (0, 1):
        levels = [{"kind": "DistributedSampler", "known": True, "replicas": 2, "rank": rank, "seed": 0}]
        recorded.add(rank, "iteration", loader=0, turn=0, site=recorded.site(19), samplers=levels)
        recorded.batch(rank, 0, 0, [rank, rank + 2])
    for number in range(4):
        for rank in (0, 1):
            recorded.backward(rank, armed=False)
            if number % 2 and steps == 4:
                recorded.call(rank, "all_reduce", 30, shape=[2], dtype="float32", reduce="SUM")
            apart = steps == 3 or number % 2 == 0
            recorded.step(rank, grads=[rank + 2 * number, 5 + rank], params=[rank * apart, 8 + number])
    assert recorded.found() == told
