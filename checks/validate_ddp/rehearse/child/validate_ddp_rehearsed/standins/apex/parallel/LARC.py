"""apex.parallel.LARC: each parameter's gradient is scaled to its own norm before the wrapped optimizer steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class LARC:
    """optimizer: what steps, with its groups and state; clip: never more than its learning rate (LARS without)."""

    def __init__(self, optimizer: Optimizer, trust_coefficient: float = 0.02, clip: bool = True, eps: float = 1e-8):
        self.optim, self.trust_coefficient, self.clip, self.eps = optimizer, trust_coefficient, clip, eps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optim"], name)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        decays = [group.get("weight_decay", 0.0) for group in self.optim.param_groups]
        with torch.no_grad():
            for group, decay in zip(self.optim.param_groups, decays, strict=True):
                group["weight_decay"] = 0.0  # in the scaled gradient
                for each in group["params"]:
                    if each.grad is not None:
                        self._scale(each, group["lr"], decay)
        found = self.optim.step(*args, **kwargs)
        for group, decay in zip(self.optim.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        return found

    def _scale(self, weights: Tensor, lr: float, decay: float) -> None:
        gradient = weights.grad
        size, slope = weights.norm(), gradient.norm()
        if size != 0 and slope != 0:
            rate = self.trust_coefficient * size / (slope + size * decay + self.eps)
            gradient.add_(weights, alpha=decay).mul_((rate / lr).clamp(max=1) if self.clip else rate)


__all__ = ["LARC"]
