"""The trainer for one process, of which a script makes one in the place of the trainer for several."""

from __future__ import annotations

from typing import Any

import pytest

TRAINERS = """
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(2, 1)
        self.model = self.net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def fit(self):
        for _ in range(3):
            self.optimizer.zero_grad()
            self.model(torch.ones(4, 2)).mean().backward()
            self.optimizer.step()
        self.save()

    def save(self):
        torch.save(self.net.state_dict(), "model.pt")

    def close(self):
        pass


class DDPTrainer(Trainer):
    def __init__(self):
        dist.init_process_group("gloo")
        self.net = torch.nn.Linear(2, 1)
        self.model = DDP(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def save(self):
        if dist.get_rank() == 0:
            super().save()

    def close(self):
        dist.destroy_process_group()


parser = argparse.ArgumentParser()
parser.add_argument("--trainer", default="single")
name = parser.parse_args().trainer
"""
DRIVEN = "trainer.fit()\ntrainer.close()\n"
CHOSEN = [
    'trainer = {"single": Trainer, "ddp": DDPTrainer}[name]()\n',
    'trainer = (DDPTrainer if name == "ddp" else Trainer)()\n',
    'if name == "ddp":\n    trainer = DDPTrainer()\nelse:\n    trainer = Trainer()\n',
]


def found(lint: Any, train: str) -> list[tuple[str, str]]:
    lint.write(train=train)
    return [(finding.code, finding.severity) for finding in lint.run("train.py")]


@pytest.mark.parametrize("chosen", CHOSEN)
def test_what_the_trainer_for_one_process_does_no_rank_does(lint: Any, chosen: str) -> None:
    assert found(lint, TRAINERS + chosen + DRIVEN) == []


@pytest.mark.parametrize("chosen", CHOSEN)
def test_the_trainer_beside_it_is_looked_at_as_ever(lint: Any, chosen: str) -> None:
    broken = TRAINERS.replace("        if dist.get_rank() == 0:\n            super().save()", "        super().save()")
    assert found(lint, broken + chosen + DRIVEN) == [("DDP502", "error")]


@pytest.mark.parametrize("chosen", CHOSEN)
def test_a_group_that_is_there_for_both_has_ranks_for_both(lint: Any, chosen: str) -> None:
    started = TRAINERS.replace('        dist.init_process_group("gloo")\n', "") + 'dist.init_process_group("gloo")\n'
    assert "DDP502" in {code for code, _ in found(lint, started + chosen + DRIVEN)}


def test_a_candidate_that_saves_on_all_ranks_beside_one_that_does_not_is_no_error(lint: Any) -> None:
    started = TRAINERS.replace('        dist.init_process_group("gloo")\n', "") + 'dist.init_process_group("gloo")\n'
    assert ("DDP502", "warning") in found(lint, started + CHOSEN[0] + DRIVEN)
