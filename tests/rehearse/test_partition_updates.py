"""The partition check on optimizers that change parameters themselves: of a right gradient the same update is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from validate_ddp.record.partition import UPDATE, judgements, told_of
from validate_ddp.rehearse.child.validate_ddp_rehearsed.partition.measure import otherwise

from .test_partition_scripts import compared

torch = pytest.importorskip("torch")
SCRIPT = str(Path(__file__).with_name("partition_update_script.py"))


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.parametrize("name", ["directions", "trust_ratios"])
def test_a_step_that_takes_its_rows_for_the_matrix_is_told(name: str) -> None:
    wrong, right = compared(name, "wrong", script=SCRIPT), compared(name, script=SCRIPT)
    assert [(each.kind, each.severity) for each in judgements(wrong)] == [(UPDATE, "warning")], told_of(wrong)
    assert "`Stepping` makes another update of it" in told_of(wrong)
    assert right.compared and not judgements(right) and not right.moved, told_of(right)


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.parametrize("name", ["drawn", "faster", "further", "signs"])
def test_updates_that_may_differ_are_not_told(name: str) -> None:
    nproc = 3 if name == "signs" else 2
    event = compared(name, script=SCRIPT, nproc=nproc)
    assert event.compared and not judgements(event), told_of(event)


@given(st.integers(1, 40), st.floats(1e-6, 1e6), st.integers(0, 99))
def test_how_far_an_update_goes_is_left_to_it(size: int, factor: float, seed: int) -> None:
    grad, update = torch.randn(2, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert otherwise(update, factor * update, grad, grad, True) < 1e-6


def test_an_update_to_the_other_side_is_another() -> None:
    grad = torch.tensor([1.0, -2.0])
    assert otherwise(grad, -grad, grad, grad, True) == pytest.approx(2**0.5)
    assert otherwise(grad, grad.flip(0), grad, grad, True) > 0.5


@pytest.mark.parametrize(
    ("one", "other", "grads"),
    [
        ([1.0, 1.0], [1.0, -1.0], ([1.0, 1.0], [1.0, 2.0])),  # another gradient
        ([1.0, 1.0], [1.0, -1.0], ([1.0, 1e-17], [1.0, -1e-17])),  # rounding
        ([0.0, 0.0], [1.0, 0.0], ([1.0, 1.0], [1.0, 1.0])),  # no update
        ([float("nan"), 0.0], [1.0, 0.0], ([1.0, 1.0], [1.0, 1.0])),
    ],
)
def test_what_says_nothing_of_the_step_is_not_told(one: Any, other: Any, grads: Any) -> None:
    first, second = map(torch.tensor, grads)
    assert otherwise(torch.tensor(one), torch.tensor(other), first.double(), second.double(), True) == 0.0
