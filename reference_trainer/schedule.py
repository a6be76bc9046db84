"""The learning rate at each optimizer step, as a factor of the peak. Torch-free: the plan prints it too."""

from __future__ import annotations

import math

from .config import OptimConfig


def lr_factor(step: int, total: int, config: OptimConfig) -> float:
    """Factor on the learning rate of optimizer step ``step`` (0 is the first) of ``total``.

    Linear warm-up over ``warmup_steps`` (the first step is not lost: it has 1/warmup), then constant, or falling to
    zero at step ``total``, linearly or by half a cosine (Loshchilov and Hutter 2017, without restarts).
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    done = min(1.0, (step - config.warmup_steps) / max(1, total - config.warmup_steps))
    return 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
