"""Short runs of the trainer that several files of tests make, and how their states are compared."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import torch

from reference_trainer.checkpoint import RunCheckpoints
from reference_trainer.checkpoint.directory import rest_of
from reference_trainer.checkpoint.weights import read_part
from reference_trainer.config import (
    CheckpointConfig,
    ClubConfig,
    Config,
    DataConfig,
    DisentangleConfig,
    EmaConfig,
    OptimConfig,
)
from reference_trainer.launch import World
from reference_trainer.randomness import rng_state
from reference_trainer.state import whole
from reference_trainer.trainer import Trainer

SIX_STEPS = Config(
    steps=6,
    global_batch=8,
    ema=EmaConfig(decay=0.9),
    club=ClubConfig(inner_steps=1, hidden=(4,)),
    data=DataConfig(train_samples=40, validation_samples=10),
    disentangle=DisentangleConfig(hidden=(8,), features=4),
    checkpoint=CheckpointConfig(keep=3),
)
EIGHT_STEPS = Config(
    steps=8,
    global_batch=12,
    seed=3,
    ema=EmaConfig(decay=0.9),
    optim=OptimConfig(warmup_steps=5, clip=5.0),
    club=ClubConfig(inner_steps=2, hidden=(8,)),
    data=DataConfig(train_samples=40, validation_samples=10),  # the epoch ends within the run
    disentangle=DisentangleConfig(hidden=(16,), features=4),
)


@contextmanager
def opened(folder, config=SIX_STEPS):
    """A trainer and its checkpoints, at the run's beginning."""
    trainer = Trainer(config, World())
    with RunCheckpoints(folder, config, trainer.plan, World()) as checkpoints:
        checkpoints.begin(trainer.state)
        yield trainer, checkpoints


def resumed_step(run):
    """The step that a new job goes on from."""
    with opened(run) as (trainer, _):
        return trainer.state.step


def trained(config, folder, until=None, trainer=None):
    """Goes on from what is in ``folder``, up to a step, and saves there. Collective: every rank.

    Returns the whole state of this rank, its generators' among it.
    """
    world = World.current()
    trainer = trainer or Trainer(config, world)
    with RunCheckpoints(folder, config, trainer.plan, world) as checkpoints:
        checkpoints.begin(trainer.state)
        for _ in trainer.steps() if until is None or trainer.state.step < until else ():
            if trainer.state.step == until:
                break
        checkpoints.save(trainer.state)
    return everything(trainer.state) | {"rng": rng_state(world.device)}


def everything(state):
    """All that training moves, in memory of its own. Collective where the model is sharded."""
    found = copy.deepcopy(state.state_dict()) | {"model": {}, "ema": {}, "moments": {}}
    for name, each in state.tensors().items():
        part, _, name = name.partition(".")
        found["moments" if part == "optimizer" else part][name] = whole(each).clone()
    return found


def saved_in(checkpoint):
    """The same, of a checkpoint."""
    parts = {"model": "model", "ema": "ema", "moments": "optimizer"}
    return rest_of(checkpoint) | {name: read_part(checkpoint, part) for name, part in parts.items()}


def same(a, b):
    """Bit by bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def one_line(text):
    return "\n" not in str(text).strip()


class Numbers:
    """A source of the numbers 0 .. count-1."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def fetch(self, index, epoch):
        return {"x": index.double()}
