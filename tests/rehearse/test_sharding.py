"""Optimizers and sharding, over recorded events: DDP313."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def sharding(recorded: Any) -> Any:
    """A run whose optimizer is built at line 14; ``fully_shard`` is called at line 16."""
    recorded.optimizer(names=(None, None))
    recorded.every("sharded", kind="fully_shard", site=recorded.site(16))
    return recorded


def stale(run: Any, count: int = 2) -> None:
    """A step of every rank on what was sharded away, as the observer tells it: before the step."""
    run.every("stale", optimizer=0, count=count, held=2, kind="fully_shard", site=run.site(16))
    for rank in range(run.world_size):
        run.step(rank)


def test_an_optimizer_of_the_unsharded_parameters_is_named_where_it_was_built(sharding: Any) -> None:
    stale(sharding)
    (finding,) = sharding.judged().findings
    assert (finding.code, finding.line, finding.severity) == ("DDP313", 14, "error")
    assert "of the 2 parameters that it steps on 2 are no longer the model's" in finding.message
    assert [(place.span.line, place.note) for place in finding.evidence] == [(16, "sharded here")]


def test_an_optimizer_that_holds_what_the_model_holds_is_held(sharding: Any) -> None:
    for rank in (0, 1):
        sharding.step(rank)
    assert sharding.word("DDP313") == "held"


def test_without_a_step_after_sharding_nothing_was_observed(recorded: Any) -> None:
    recorded.optimizer(names=(None, None))
    for rank in (0, 1):
        recorded.step(rank)
    recorded.every("sharded", kind="fully_shard", site=recorded.site(16))
    assert recorded.judged().verdicts["DDP313"].word == "not observed"


def test_two_optimizers_are_two_findings(sharding: Any) -> None:
    sharding.optimizer(line=15, names=(None,), number=1)
    sharding.every("stale", optimizer=1, count=1, held=1, kind="fully_shard", site=sharding.site(16))
    stale(sharding, count=1)
    assert sharding.found() == {("DDP313", 14), ("DDP313", 15)}


def test_parameters_that_a_forward_had_left_unsharded_are_named_as_such(recorded: Any) -> None:
    recorded.every("sharded", kind="fully_shard", site=recorded.site(12))
    recorded.optimizer(names=(None, None))
    recorded.every("stale", optimizer=0, count=2, held=2, kind="", site=recorded.site(12))
    for rank in (0, 1):
        recorded.step(rank)
    (finding,) = recorded.judged().findings
    assert finding.line == 14 and "when a forward had left the model unsharded" in finding.message
