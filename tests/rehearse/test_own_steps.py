"""Steps without an optimizer of torch's, as the restart check sees them; and numbers that a command line sets."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest
from validate_ddp.rehearse.child.validate_ddp_rehearsed.restart.settings import _numbers

torch = pytest.importorskip("torch")
from validate_ddp.rehearse.child.validate_ddp_rehearsed.restart.own_steps import OwnSteps  # noqa: E402


def test_a_step_is_what_changes_parameters_since_they_were_met() -> None:
    session: Any = SimpleNamespace(torch=torch, optimizers=SimpleNamespace(count=0))
    model, steps = torch.nn.Linear(2, 1), OwnSteps(session)
    assert steps.taken() == {}
    steps.begins(model.named_parameters())
    assert steps.taken() == {}, "a micro-batch changes nothing"
    with torch.no_grad():
        model.weight -= 1.0
    steps.begins(model.named_parameters())  # what they were first counts
    before = steps.taken()
    assert list(before) == ["weight", "bias"] and steps.taken() == {}
    steps.begins(model.named_parameters())
    with torch.no_grad():
        model.weight += 0.5
    assert steps.taken()["weight"] != before["weight"]

    steps.begins(model.named_parameters())
    session.optimizers.count = 1
    with torch.no_grad():
        model.weight += 0.5
    assert steps.taken() == {}, "an optimizer of torch's tells of its own"
    steps.begins(model.named_parameters())
    assert steps.held == {}


def test_the_numbers_of_a_command_line() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--steps", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("epochs", type=int)
    read = parser.parse_args(["3", "-n", "5"])
    assert _numbers(parser, read) == [("--steps", 5)]
