"""One optimizer step on all ranks: the part to copy.

DDP averages gradients over ranks. The loss wanted is the mean over all samples of all ranks and micro-steps, so each
rank's *sum* is multiplied by W / N, with N the count over all of them: then the average over W ranks is that mean,
also where ranks have different numbers of samples, or none. A mean per rank would weigh samples by their rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .collectives import sum_count
from .data import Batch
from .ema import Ema
from .finite import Gate, Update, clip_gradients
from .launch import World
from .objectives import Objective
from .precision import FLOAT32, UNSCALED, Precision

__all__ = ["StepResult", "train_step"]


class StepResult(NamedTuple):
    """What a step leaves to be logged. Tensors stay on the device: reading one here would wait for it."""

    sums: dict[str, Tensor]
    """Sums over this rank's samples; "loss" among them."""
    total: float | Tensor
    """The count over all ranks and micro-steps."""
    values: dict[str, Tensor]
    """Equal on all ranks."""
    grad_norm: Tensor
    """Of the averaged gradient, before it is clipped."""
    taken: Tensor | None = None
    """Whether the step was taken: a boolean, from the gate; None without one."""


def train_step(
    model: nn.Module,
    objective: Objective,
    optimizer: Optimizer,
    batches: Sequence[Batch],
    *,
    world: World,
    clip: float | None = None,
    scheduler: LRScheduler | None = None,
    ema: Ema | None = None,
    gate: Gate | None = None,
    precision: Precision = FLOAT32,
) -> StepResult:
    """One optimizer step over ``batches``, the micro-batches of this rank. Collective: every rank, as many batches.

    model: ``objective.module``, wrapped in DDP where there are several ranks. clip: largest gradient norm. gate: what
    happens with a gradient that is not finite; without one it is applied. It has the scaler, if there is to be one.
    precision: whether the forward pass is under autocast.
    """
    forward, scaler = precision.forward(model), gate.scaler if gate else UNSCALED
    total = sum_count(sum(objective.count(batch) for batch in batches), world.group, world.device)
    objective.prepare(forward, batches, total)
    optimizer.zero_grad(set_to_none=True)
    sums: dict[str, Tensor] = {}
    values: dict[str, Tensor] = {}
    for batch in batches:
        # Gradients are sent once, with those of the last micro-step.
        with synchronized(model, batch is batches[-1]):
            loss = objective.loss(forward, batch)
            # One rank's loss that is not finite makes the gradient so on all: they decide alike. Else this adds 0.
            scaler.scale(loss.sum * (world.size / total + 0 * loss.sum.detach())).backward()
        for name, value in {"loss": loss.sum.detach(), **loss.metrics}.items():
            sums[name] = sums[name] + value if name in sums else value
        values |= loss.values

    scaler.unscale_(optimizer)
    # The norm of the average, the same on all ranks: clipping before the average would change its direction.
    grad_norm, norms = clip_gradients(optimizer, clip)

    def advance() -> None:
        if scheduler is not None:
            scheduler.step()
        if ema is not None:
            ema.update(objective.module)

    taken = None
    if gate is None:
        optimizer.step()
        advance()
    else:
        taken = gate.apply(Update(batches, total, sums["loss"], grad_norm, norms, advance, precision))
    return StepResult(sums, total, values, grad_norm, taken)


def synchronized(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Whether this backward pass averages gradients over ranks. Forward and backward must both be inside."""
    if last or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return model.no_sync()
