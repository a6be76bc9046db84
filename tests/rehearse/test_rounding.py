"""Weights in low precision, over recorded events: DDP318."""

from __future__ import annotations

from typing import Any

import pytest


def step(
    run: Any, count: int, should: int, still: int, rate: float = 1e-5, rising: bool = False, stuck: int = 0
) -> None:
    """One step of one optimizer, on every rank."""
    run.every(
        "rounded", optimizer=1, count=count, dtype="bfloat16", should=should, still=still, tensors=9, stuck=stuck,
        rate=rate, rising=rising, site=run.site(40),
    )  # fmt: skip


def made(run: Any) -> None:
    run.every("optimizer", optimizer=1, kind="AdamW", inner=False, site=run.site(20))


def test_lost_updates_are_told_where_the_optimizer_is_made(recorded: Any) -> None:
    made(recorded)
    for count in (1, 2):
        step(recorded, count, 100, 97)
    (finding,) = recorded.judged().findings
    assert (finding.code, finding.line, finding.severity) == ("DDP318", 20, "warning")
    assert "bfloat16" in finding.message and "97%" in finding.message and "1e-05" in finding.message
    assert [place.span.line for place in finding.evidence] == [40]


def test_without_its_making_they_are_told_at_the_step(recorded: Any) -> None:
    step(recorded, 1, 100, 97)
    assert recorded.found() == {("DDP318", 40)}


@pytest.mark.parametrize(("still", "word"), [(9, "held"), (30, "not observed"), (51, "violated")])
def test_a_few_that_stay_are_right(recorded: Any, still: int, word: str) -> None:
    made(recorded)
    step(recorded, 1, 100, still)
    assert recorded.judged().verdicts["DDP318"].word == word


@pytest.mark.parametrize(
    "steps",
    [
        [{"should": 10, "still": 10}],
        [{"should": 100, "still": 100, "rate": 0.0}],
        [{"should": 100, "still": 100, "rising": True}],
        [{"should": 100, "still": 100, "rate": 1e-6}, {"should": 100, "still": 100, "rate": 2e-6}],
    ],
    ids=["a few elements", "no rate", "a warm-up by a schedule", "a warm-up by hand"],
)
def test_what_says_nothing(recorded: Any, steps: list[dict[str, Any]]) -> None:
    made(recorded)
    for count, fields in enumerate(steps, 1):
        step(recorded, count, **fields)
    assert recorded.word("DDP318") == "not observed"


def test_a_parameter_that_stands_still_is_told_where_the_others_move(recorded: Any) -> None:
    made(recorded)
    for count in (1, 2):
        step(recorded, count, 100, 20, stuck=2)
    (finding,) = recorded.judged().findings
    assert "2 of 9 parameters do not move at all" in finding.message


def test_behind_a_warm_up_the_full_rate_counts(recorded: Any) -> None:
    made(recorded)
    for count, rate, still in ((1, 1e-6, 100), (2, 1e-4, 5), (4, 2e-4, 5), (8, 1.9e-4, 5)):
        step(recorded, count, 100, still, rate=rate)
    assert recorded.word("DDP318") == "held"
