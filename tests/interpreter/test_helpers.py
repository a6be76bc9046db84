"""Processes that a rank starts are not ranks, where it joins the others itself."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
def simulate(pipe):
    while True:
        pipe.send(torch.ones(2, 4))


def train():
    JOIN
    model = DDP(torch.nn.Linear(4, 1))
    theirs, ours = mp.Pipe()
    START
    for step in range(3):
        model(ours.recv()).sum().backward()
    torch.save(model.module.state_dict(), "model.pt")


BEGIN
"""
JOIN = 'dist.init_process_group("gloo")'
HELPED = SCRIPT.replace("START", "mp.Process(target=simulate, args=(theirs,)).start()").replace("BEGIN", "train()")
RANKS = SCRIPT.replace("START", "pass").replace("BEGIN", "mp.Process(target=train).start()")
SAVED_BEFORE = RANKS.replace("mp.Process", 'torch.save({}, "empty.pt")\nmp.Process')


@pytest.mark.parametrize(
    ("script", "severities"),
    [(HELPED.replace("JOIN", JOIN), ["error"]), (SAVED_BEFORE.replace("JOIN", JOIN), ["error"])],
    ids=["a helper", "ranks"],
)
def test_who_is_started_is_a_rank_only_where_it_joins(lint: Any, script: str, severities: list[str]) -> None:
    assert lint.body(f"# alone\n{script}", "DDP502").severities == severities
