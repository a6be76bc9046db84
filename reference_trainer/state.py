"""Everything that training moves, in one object: what is not here is lost when the process ends."""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .ema import Ema
from .objectives import Objective

__all__ = ["TrainState"]


@dataclass
class TrainState:
    """The state of a run on one rank; equal on all ranks."""

    objective: Objective
    """The unwrapped module, and the estimators beside it."""
    optimizer: Optimizer
    scheduler: LRScheduler
    ema: Ema | None = None
    step: int = 0
    """Optimizer steps attempted: the plan counts these. Also the position in the stream of samples."""
