"""Everything that training moves, in one object: what is not here is lost when the process ends. And the average."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .config import ConfigError
from .core.objective import Batch, Objective
from .precision import FLOAT32, UNSCALED, Precision
from .randomness import rng_state, set_rng_state


class Best(NamedTuple):
    """The best evaluation so far."""

    value: float
    step: int


@dataclass
class TrainState:
    """The state of a run on one rank, equal on all. A new field is saved without further ado."""

    objective: Objective  # The unwrapped module, and the estimators beside it.
    optimizer: Optimizer
    scheduler: LRScheduler
    ema: Ema | None = None
    scaler: GradScaler = UNSCALED  # Of the loss in float16; elsewhere it does nothing.
    step: int = 0  # Optimizer steps attempted: the plan counts these. Also the position in the stream of samples.
    evaluated: int = 0
    """The step whose validation was the last to be finished: a run that was stopped in one begins with it."""
    best: Best | None = None  # By the metric that chooses the best checkpoint.

    def state_dict(self) -> dict[str, Any]:
        """The state of every field, and ``model``, the objective's module. Local."""
        found: dict[str, Any] = {"model": self.objective.module.state_dict()}
        for field in fields(self):
            value = getattr(self, field.name)
            if hasattr(value, "state_dict"):
                value = value.state_dict()
            value = tuple(value) if isinstance(value, Best) else value
            if not isinstance(value, bool | int | float | str | dict | tuple | None):
                raise TypeError(f"TrainState.{field.name} is a {type(value).__name__}, which cannot be saved")
            found[field.name] = value
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes in what ``state_dict`` gave. Collective: every rank, with the same state (estimators are broadcast)."""
        self.objective.module.load_state_dict(state["model"])
        for field in fields(self):
            value, saved = getattr(self, field.name), state.get(field.name)
            if hasattr(value, "load_state_dict"):
                if saved is None:
                    told = "an older or another program saved it; begin with its weights alone (checkpoint.init_from)"
                    raise ConfigError(f"the checkpoint has no {field.name}: {told}, in another run_dir")
                value.load_state_dict(saved)
            elif field.name == "best":
                self.best = None if saved is None else Best(*saved)
            elif field.name in state:  # else it was saved before there was such a field
                setattr(self, field.name, saved)


class Ema:
    """average = decay * average + (1 - decay) * parameter, after every optimizer step; in float32 at least."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in module.named_parameters()]
        kinds = [torch.promote_types(each.dtype, torch.float32) for each in module.parameters()]
        self.averages = [
            each.detach().to(kind, copy=True) for each, kind in zip(module.parameters(), kinds, strict=True)
        ]

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Takes in the parameters of the unwrapped module as they are now. Local."""
        pairs = zip(module.parameters(), self.averages, strict=True)
        current = [each.detach().to(average.dtype) for each, average in pairs]
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


def settle_buckets(model: nn.Module, objective: Objective, batch: Batch, precision: Precision = FLOAT32) -> None:
    """One forward and backward pass on ``batch`` that leaves nothing behind. Collective: every rank, after each wrap.

    DDP forms its buckets anew after the first backward pass: the first step of a process would round otherwise.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    device = batch.index.device
    rng, buffers = rng_state(device), [each.detach().clone() for each in model.buffers()]
    before = _written(objective)
    objective.rehearse(precision.forward(model), batch).backward()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, kept in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(kept)
    set_rng_state(rng, device)
    if _written(objective) != before:
        told = "moved the objective's state; override it with a loss that reaches all parameters and moves nothing"
        raise RuntimeError(f"{type(objective).__name__}.rehearse {told}")


def _written(objective: Objective) -> bytes:
    file = io.BytesIO()
    torch.save(objective.state_dict(), file)
    return file.getvalue()
