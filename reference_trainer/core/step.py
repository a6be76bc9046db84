"""One optimizer step on all ranks: the part to copy.

DDP averages gradients over ranks. The loss wanted is the mean over all samples of all ranks and micro-steps, so each
rank's *sum* is multiplied by W / N, with N the count over all of them: then the average over W ranks is that mean,
also where ranks have different numbers of samples, or none. A mean per rank would weigh samples by their rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .collectives import sum_count
from .launch import World
from .objective import Batch, Forward, Objective


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


class Update(NamedTuple):
    """A step that may be taken."""

    batches: Sequence[Batch]
    total: float | Tensor
    """The count over all ranks."""
    loss: Tensor
    """This rank's sum."""
    grad_norm: Tensor
    norms: Tensor
    """(parameters,), of each averaged gradient before it was clipped."""
    advance: Callable[[], None]
    """What belongs to a step that is taken, after the optimizer: schedule and average."""


class EachStep:
    """Around an optimizer: takes each step. A subclass may scale the loss, and withhold a step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def scale(self, loss: Tensor) -> Tensor:
        """The loss whose gradient is taken. Local."""
        return loss

    def unscale(self) -> None:
        """Makes the gradients those of the loss itself. Local."""

    def apply(self, update: Update) -> Tensor | None:
        """Takes the step, or not; returns whether, as a boolean on the device, or None: always. Collective."""
        self.optimizer.step()
        update.advance()
        return None


def train_step(
    model: nn.Module,
    objective: Objective,
    optimizer: Optimizer | EachStep,
    batches: Sequence[Batch],
    *,
    world: World,
    clip: float | None = None,
    scheduler: LRScheduler | None = None,
    ema: Any = None,
    forward: Forward | None = None,
) -> StepResult:
    """One optimizer step over ``batches``, the micro-batches of this rank. Collective: every rank, as many batches.

    model: ``objective.module``, in DDP where there are several ranks. optimizer: as it is, or in an ``EachStep``. clip:
    largest gradient norm. ema: has ``update(module)``. forward: the model as it is called, if not as it is (autocast).
    """
    gate = optimizer if isinstance(optimizer, EachStep) else EachStep(optimizer)
    forward, optimizer = forward or model, gate.optimizer
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
            gate.scale(loss.sum * (world.size / total + 0 * loss.sum.detach())).backward()
        for name, value in {"loss": loss.sum.detach(), **loss.metrics}.items():
            sums[name] = sums[name] + value if name in sums else value
        values |= loss.values

    gate.unscale()
    # The norm of the average, the same on all ranks: clipping before the average would change its direction.
    grad_norm, norms = clip_gradients(optimizer, clip)

    def advance() -> None:
        if scheduler is not None:
            scheduler.step()
        if ema is not None:
            ema.update(objective.module)

    taken = gate.apply(Update(batches, total, sums["loss"], grad_norm, norms, advance))
    return StepResult(sums, total, values, grad_norm, taken)


def synchronized(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Whether this backward pass averages gradients over ranks. Forward and backward must both be inside."""
    if last or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return model.no_sync()


def clip_gradients(optimizer: Optimizer, largest: float | None) -> tuple[Tensor, Tensor]:
    """Scales the gradients down to a norm of ``largest``; None leaves them. Local.

    Returns the norm over all parameters and those of each, (parameters,), both before. As nn.utils.clip_grad_norm_,
    which does not tell the latter, and after which every gradient is NaN where one was.
    """
    gradients = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients))
    norm = torch.linalg.vector_norm(norms)
    if largest is not None:
        torch._foreach_mul_(gradients, (largest / (norm + 1e-6)).clamp(max=1.0))
    return norm, norms
