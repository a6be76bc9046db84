"""The learning rate's shape: warm-up, then constant, or down to zero at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.config import OptimConfig


def curve(total, **options):
    config = OptimConfig(**options)
    return [config.factor(step, total) for step in range(total)]


def test_warm_up_rises_by_equal_steps_to_the_peak_and_loses_no_step():
    assert curve(6, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_and_cosine_fall_from_the_peak_towards_zero():
    assert curve(4, schedule="linear") == [1.0, 0.75, 0.5, 0.25]
    assert curve(4, schedule="cosine") == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


@given(st.integers(1, 50), st.integers(0, 60), st.sampled_from(["constant", "linear", "cosine", "step", "wsd"]))
def test_every_factor_is_within_0_and_1_and_falls_after_the_warm_up(total, warmup, schedule):
    factors = curve(total, warmup_steps=warmup, schedule=schedule)
    assert all(0 < factor <= 1 for factor in factors)
    after = factors[warmup:]
    assert after == sorted(after, reverse=True)


@pytest.mark.runtime
@pytest.mark.parametrize("total", [10, 100, 7, 600])
def test_one_cycle_and_step_are_those_of_torch(total):
    torch = pytest.importorskip("torch")

    def rates(make):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule, found = make(optimizer), []
        for _ in range(total):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step() if len(found) < total else None
        return found

    torchs = rates(lambda each: torch.optim.lr_scheduler.OneCycleLR(each, 1.0, total_steps=total))
    assert curve(total, schedule="one_cycle") == pytest.approx(torchs)
    torchs = rates(lambda each: torch.optim.lr_scheduler.StepLR(each, 3))
    assert curve(total, schedule="step", step_every=3) == pytest.approx(torchs)


def test_after_the_stable_part_the_rate_falls_to_zero():
    assert curve(10, schedule="wsd", cooldown=0.4) == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])
