"""apex.parallel.LARC: each parameter's gradient is scaled to its own norm before the wrapped optimizer steps."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer


class LARC:
    """optimizer: what steps, with its groups and state; clip: never more than its learning rate (LARS without)."""

    def __init__(self, optimizer: Optimizer, trust_coefficient: float = 0.02, clip: bool = True, eps: float = 1e-8):
        self.optim, self.trust_coefficient, self.clip, self.eps = optimizer, trust_coefficient, clip, eps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optim"], name)

    @torch.no_grad()
    def step(self, *args: Any, **kwargs: Any) -> Any:
        decays = [group.get("weight_decay", 0.0) for group in self.optim.param_groups]
        for group, decay in zip(self.optim.param_groups, decays, strict=True):
            group["weight_decay"] = 0.0  # in the scaled gradient
            for each in group["params"]:
                if each.grad is None:
                    continue
                weight, gradient = each.norm(), each.grad.norm()
                if weight != 0 and gradient != 0:
                    rate = self.trust_coefficient * weight / (gradient + weight * decay + self.eps)
                    each.grad.add_(each, alpha=decay).mul_((rate / group["lr"]).clamp(max=1) if self.clip else rate)
        found = self.optim.step(*args, **kwargs)
        for group, decay in zip(self.optim.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        return found


__all__ = ["LARC"]
