"""Gradients that pile up where a rank's optimizer does not hold their parameters, from recorded events: DDP319."""

from __future__ import annotations

from typing import Any

import pytest

NAMES = ["weight", "bias"]


def model(run: Any, rank: int, names: Any = NAMES) -> None:
    shapes = [[2]] * len(names)
    run.add(rank, "model", model=0, kind="Net", names=names, shapes=shapes, trained=[0, 1], wrapped=[], buffers=[])


def piled(run: Any, rank: int, places: list[int], held: list[int]) -> None:
    run.add(rank, "piled", model=0, places=places, held=held, site=run.site(40))


@pytest.mark.parametrize(
    ("held", "names", "rows"),
    [
        ([1], NAMES, [("DDP319", 40, "warning")]),
        ([], NAMES, []),  # nobody steps on it
        ([1], ["weight", "scale"], []),  # another model
    ],
)
def test_what_is_left_of_earlier_steps_and_another_rank_steps_on_is_named(
    recorded: Any, held: list[int], names: list[str], rows: Any
) -> None:
    model(recorded, 0)
    model(recorded, 1, names)
    piled(recorded, 0, [1], [0])
    piled(recorded, 1, [], held)
    assert recorded.rated() == rows
    assert all("`bias`" in finding.message for finding in recorded.judged().findings)
