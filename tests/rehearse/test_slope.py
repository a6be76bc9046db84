"""The search for a parameter whose gradient is not the slope of the loss, over slopes that are made up."""

from __future__ import annotations

import pytest
from validate_ddp.rehearse.slope import Along, Wrong, search

NAMES = [f"{number}:w" for number in range(8)]


def told(factors: dict[str, float], common: float = 1.0) -> tuple[Wrong | None, int]:
    """What is found where gradients are so many times the slope, and in how many runs."""
    runs = 0

    def along(names: list[str]) -> Along:
        nonlocal runs
        runs += 1
        slopes = [2.0 + int(name[0]) for name in names]
        factor = [factors.get(name, common) for name in names]
        return Along(sum(a * b for a, b in zip(factor, slopes, strict=True)), sum(slopes) * (1 + 1e-6))

    return search(NAMES, along(NAMES), 2, along), runs


@pytest.mark.parametrize("common", [1.0, 2.0, 0.37])
def test_gradients_that_are_all_as_many_times_the_slope_are_not_told(common: float) -> None:
    wrong, runs = told({}, common)
    assert wrong is None and runs <= 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factor", [2.0, 0.0, 0.5, -1.3])
def test_the_one_that_is_not_is_found_by_name(name: str, factor: float) -> None:
    wrong, runs = told({name: factor})
    assert wrong is not None and wrong.name == name and runs <= 4
    assert wrong.factor == pytest.approx(factor, abs=1e-4) and wrong.others == 1.0


def test_of_two_halves_that_are_each_right_those_are_told_that_are_more() -> None:
    assert told(dict.fromkeys(NAMES[:4], 2.0))[0] == Wrong(NAMES[0], 2.0, 1.0)


def test_where_all_are_wrong_one_is_told() -> None:
    wrong, _ = told({name: 0.3 + int(name[0]) for name in NAMES})
    assert wrong is not None and wrong.others is None
