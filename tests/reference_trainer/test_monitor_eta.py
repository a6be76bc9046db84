"""The time that is left of a run: exact where steps are alike, within what was seen where they are not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.monitor.records import Eta

seconds = st.floats(1e-4, 1e3)


def simulated(eta: Eta, durations, *, start: float = 0.0):
    """Steps that take these times, the first one after ``start``; returns the clock at the end of the last."""
    now = start
    for duration in durations:
        now += duration
        eta.advance(now)
    return now


@given(step=seconds, total=st.integers(2, 500), start_up=seconds, data=st.data())
def test_of_steps_that_are_alike_it_is_exact_whatever_the_first_one_took(step, total, start_up, data):
    done = data.draw(st.integers(2, total))
    eta = Eta(total)
    now = simulated(eta, [start_up, *[step] * (done - 1)])
    assert eta.remaining(now) == pytest.approx((total - done) * step, rel=1e-6, abs=1e-9)
    # It counts down within a step, and waits for one that is late.
    assert eta.remaining(now + step / 2) == pytest.approx(max(0, total - done - 0.5) * step, rel=1e-6, abs=1e-6 * step)
    assert eta.remaining(now + 9 * step) == pytest.approx(max(0, total - done - 1) * step, rel=1e-6, abs=1e-6 * step)


@pytest.mark.parametrize(
    ("steps", "spread"), [(20, 0.0), (100, 0.0), (100, 0.1), (1000, 0.1), (1000, 0.3), (20_000, 0.3)]
)
def test_after_a_tenth_of_a_steady_run_it_is_within_a_tenth(steps, spread):
    # With the noise that steps have: each alone, some a loader's stall; ten runs of each kind.
    for seed in range(10):
        generator = random.Random(f"{seed} {steps} {spread}")
        durations = [0.05 * max(0.2, generator.gauss(1.0, spread)) for _ in range(steps)]
        if steps >= 1000:
            durations = [each + 0.2 * (place % 8 == 0) for place, each in enumerate(durations)]
        tenth = max(2, steps // 10)
        eta = Eta(steps)
        now = simulated(eta, [3.0, *durations[1:tenth]])
        left = sum(durations[tenth:])
        assert abs(eta.remaining(now) - left) <= 0.1 * left, (seed, eta.remaining(now), left)


def test_what_comes_between_steps_is_counted_as_often_as_it_came():
    eta, now = Eta(20), 0.0
    for _ in range(5):
        now = simulated(eta, [1.0] * 2, start=now) + 3.0  # an evaluation
    assert eta.remaining(now) == pytest.approx(10 * (9 + 4 * 3.0) / 9 - (9 + 4 * 3.0) / 9)


def test_before_the_second_step_it_is_not_known():
    eta = Eta(10, step=3)
    assert eta.remaining(0.0) is None
    eta.advance(5.0)
    assert (eta.step, eta.remaining(5.0), eta.step_seconds) == (4, None, None)
    eta.advance(7.0)
    assert eta.remaining(7.0) == pytest.approx(10.0)
