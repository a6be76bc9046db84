"""An exponential moving average of a module's parameters, in float32 or wider whatever the module's type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["Ema"]


class Ema:
    """average = decay * average + (1 - decay) * parameter, after every optimizer step.

    Equal on all ranks because the parameters are: nothing is sent. In float32 at least: in bfloat16 an update of
    0.1 % is below the last bit and the average would stand still.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in module.named_parameters()]
        self.averages = [_wide(each) for each in module.parameters()]

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Takes in the parameters of the unwrapped module as they are now. Local."""
        current = [
            each.detach().to(average.dtype) for each, average in zip(module.parameters(), self.averages, strict=True)
        ]
        torch._foreach_lerp_(self.averages, current, 1.0 - self.decay)

    @torch.no_grad()
    def reset(self, module: nn.Module) -> None:
        """Begins anew with the parameters of the unwrapped module as they are now. Local."""
        torch._foreach_copy_(self.averages, list(module.parameters()))

    @contextmanager
    def swapped(self, module: nn.Module) -> Iterator[None]:
        """Within: the module has the averaged weights, rounded to its own type. Local."""
        parameters = list(module.parameters())
        kept = [each.detach().clone() for each in parameters]
        with torch.no_grad():
            torch._foreach_copy_(parameters, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(parameters, kept)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by parameter name, in their own type. Local."""
        return dict(zip(self.names, self.averages, strict=True))

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes in averages; the names must be the same. Local."""
        if set(state) != set(self.names):
            raise ValueError(f"EMA of other parameters: {sorted(set(state) ^ set(self.names))[:5]} are in one only")
        for name, average in zip(self.names, self.averages, strict=True):
            average.copy_(state[name])


def _wide(parameter: Tensor) -> Tensor:
    """A copy in float32, or float64 where the parameter is."""
    return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
