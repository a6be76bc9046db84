"""Processes that a rank starts are no ranks where it joins the others itself."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
def simulate(pipe):
    while True:
        pipe.send(torch.ones(2, 4))


def train():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    theirs, ours = mp.Pipe()
    START
    for step in range(3):
        model(ours.recv()).sum().backward()
    torch.save(model.module.state_dict(), "model.pt")


BEGIN
"""
HELPERS = "for number in range(4):\n        mp.Process(target=simulate, args=(theirs,)).start()"
RANKS = 'torch.save({}, "empty.pt")\nfor number in range(2):\n    mp.Process(target=train).start()'
HELPED = SCRIPT.replace("START", HELPERS).replace("BEGIN", "train()")
STARTED = SCRIPT.replace("START", "pass").replace("BEGIN", RANKS)


@pytest.mark.parametrize(
    ("script", "severities"),
    [(HELPED, ["error"]), (STARTED, ["error"])],
    ids=["a helper", "ranks"],
)
def test_who_is_started_is_a_rank_only_where_it_joins(lint: Any, script: str, severities: list[str]) -> None:
    assert lint.body(f"# alone\n{script}", "DDP502").severities == severities
