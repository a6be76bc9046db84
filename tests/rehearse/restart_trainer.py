"""Our trainer with an averaged teacher and a count of steps, which are in no checkpoint but with the word ``tells``."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference_trainer import Config, Objective, Trainer, World
from reference_trainer.config import CheckpointConfig
from reference_trainer.core.objective import Batch, Forward, Loss
from reference_trainer.sources import Data


class Waves:
    def __init__(self, samples: int) -> None:
        self.x = torch.randn(samples, 1, generator=torch.Generator().manual_seed(samples))

    def __len__(self) -> int:
        return len(self.x)

    def fetch(self, index: Tensor, epoch: int) -> dict[str, Tensor]:
        return {"x": self.x[index]}


class Regression(Objective):
    def __init__(self) -> None:
        self.module = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        self.teacher = copy.deepcopy(self.module).requires_grad_(False)

    def prepare(self, forward: Forward, batches: Sequence[Batch], total: float | Tensor) -> None:
        with torch.no_grad():
            for mean, parameter in zip(self.teacher.parameters(), self.module.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        x = batch.data["x"]
        found = forward(x)
        return Loss(((found - x.sin()).square() + 0.1 * (found - self.teacher(x)).square()).sum(), {}, {})

    def evaluate(self, module: Forward, batch: Batch) -> dict[str, Tensor]:
        return {"squared_error": (module(batch.data["x"]) - batch.data["x"].sin()).square().sum()}

    def state_dict(self) -> dict[str, Any]:
        return {"teacher": self.teacher.state_dict()} if "tells" in sys.argv else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "tells" in sys.argv:
            self.teacher.load_state_dict(state["teacher"])


if __name__ == "__main__":
    config = Config(steps=8, global_batch=12, run_dir="run", checkpoint=CheckpointConfig(save_every=2))
    torch.manual_seed(config.seed)  # the same teacher on all ranks
    with World.from_env(dist=config.dist) as world:
        data = Data(train=Waves(72), validation=Waves(12), test=Waves(12))
        trainer, taken = Trainer(config, world, objective=Regression(), data=data), count()

        def warm_up(optimizer: Optimizer, *_: object) -> None:
            step = trainer.state.step if "tells" in sys.argv else next(taken)
            optimizer.param_groups[0]["lr"] = 1e-4 * (step + 1)

        trainer.state.optimizer.register_step_pre_hook(warm_up)
        trainer.run()
