"""By what the targets of a step are divided, read from how much each weighs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from validate_ddp.record.weights import ALIKE, GROUP, MOMENT, OWN, RANK, UNCLEAR, Cell, divided, spread, whole

COUNTS = ((30, 60), (90, 20))
"""Of two ranks, each with two micro-batches."""


def rows(weight: Callable[[int, int], float | None]) -> list[list[Cell]]:
    return [[Cell(count, weight(rank, at)) for at, count in enumerate(row)] for rank, row in enumerate(COUNTS)]


@pytest.mark.parametrize(
    ("weight", "kind"),
    [
        (lambda rank, at: 1 / 200, ALIKE),
        (lambda rank, at: 1 / COUNTS[rank][at], OWN),
        (lambda rank, at: 1 / (COUNTS[0][at] + COUNTS[1][at]), MOMENT),
        (lambda rank, at: 1 / sum(COUNTS[rank]), RANK),
        (lambda rank, at: (0.1, 0.3)[at], UNCLEAR),
        (lambda rank, at: None if at else 0.1, UNCLEAR),
        (lambda rank, at: float("nan"), UNCLEAR),
    ],
)
def test_what_divides_is_read_from_weights(weight: Callable[[int, int], float | None], kind: str) -> None:
    assert divided(rows(weight)) == kind


def test_how_unequal_targets_are_and_what_they_are_together() -> None:
    own = rows(lambda rank, at: 1 / COUNTS[rank][at])
    assert (spread(own), whole(own)) == (4.5, 2.0)


def test_a_micro_batch_without_targets_has_no_weight() -> None:
    assert divided([[Cell(0, None), Cell(30, 0.1)], [Cell(10, 0.1), Cell(5, 0.1)]]) == ALIKE


def test_a_count_of_some_ranks_divides() -> None:
    counts = (10, 40, 30, 20)
    mesh = [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]
    by_columns = [[Cell(count, 1 / sum(counts[at % 2 :: 2]))] for at, count in enumerate(counts)]
    assert divided(by_columns, mesh) == GROUP and divided(by_columns) == UNCLEAR
    assert divided([[Cell(count, 1 / sum(counts))] for count in counts], mesh) == ALIKE
    assert divided([[Cell(count, weight)] for count, weight in zip(counts, (1, 2, 3, 4), strict=True)], mesh) == UNCLEAR
