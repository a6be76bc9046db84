"""An objective of your own, on one process or on any number of them: torchrun --nproc-per-node 2 own_objective.py"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference_trainer import Config, Objective, Trainer, World
from reference_trainer.config import OptimConfig
from reference_trainer.core.objective import Batch, Forward, Loss
from reference_trainer.sources import Data


class Waves:
    """The data: noisy sines. The same on every rank; the trainer says which samples a rank fetches."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = 2 * torch.randn(samples, 1, generator=generator)
        self.y = self.x.sin() + 0.1 * torch.randn(samples, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def fetch(self, index: Tensor, epoch: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "y": self.y[index]}


class Regression(Objective):
    """What is trained, and its loss: a sum over samples, which the trainer divides by their number on all ranks."""

    def __init__(self) -> None:
        self.module = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        return Loss(self.squared_error(forward, batch), metrics={}, values={})

    def evaluate(self, module: Forward, batch: Batch) -> dict[str, Tensor]:
        return {"squared_error": self.squared_error(module, batch)}

    def squared_error(self, forward: Forward, batch: Batch) -> Tensor:
        return (forward(batch.data["x"]) - batch.data["y"]).square().sum()


def main() -> None:
    config = Config(steps=300, global_batch=128, log_every=100, optim=OptimConfig(lr=1e-2))
    with World.from_env(dist=config.dist) as world:
        torch.manual_seed(config.seed)  # the same first weights in every run
        data = Data(train=Waves(2000, 0), validation=Waves(200, 1), test=Waves(500, 2))
        Trainer(config, world, objective=Regression(), data=data).run()


if __name__ == "__main__":
    main()
