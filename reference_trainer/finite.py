"""What happens when a loss or a gradient is not a finite number: the step is withheld, named, and the run stops or not.

The averaged gradient is the same on all ranks, so each decides for itself and all decide alike. (A loss that is not
finite makes the gradient so: see `step`.) Who caused it is looked up only then: the ranks' losses, and where those are
finite, each rank's own gradient, computed once more without the average.

On a GPU the verdict is not waited for. A fused optimizer reads it on the device, as with a GradScaler, and leaves
weights and moments alone; the host reads it one step later, when it has long arrived, and does then what belongs to a
step that was taken (schedule, average). Elsewhere reading it costs nothing, or there is no other way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .collectives import sum_reducer
from .data import Batch
from .launch import World
from .objectives import Objective

__all__ = ["MOST_IN_A_ROW", "Gate", "NonFiniteError", "Update", "clip_gradients"]

MOST_IN_A_ROW = 20
"""Skipped steps in a row after which a run stops all the same. A GradScaler that begins at 2^16 is at 1 after 16."""


class NonFiniteError(ArithmeticError):
    """A loss or a gradient is not finite; one line: what, on which rank, at which step, in which parameter."""


@dataclass
class Update:
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
    applied: bool = False
    """Whether the optimizer has had it, and has left out by itself what is not finite."""


class Gate:
    """Lets finite updates through to the optimizer.

    policy: "stop" raises NonFiniteError on every rank, with the weights as they were before the step; "skip" goes on
    with the next step, at most `MOST_IN_A_ROW` times in a row. tell: gets the line of each skipped step.
    lagging: whether the verdict is read one step later; by default, on a GPU with a fused optimizer.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        world: World,
        *,
        policy: Literal["stop", "skip"] = "stop",
        tell: Callable[[str], None] = print,
        lagging: bool | None = None,
    ) -> None:
        self.objective, self.optimizer, self.world, self.policy, self.tell = objective, optimizer, world, policy, tell
        withholds = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        if lagging and not withholds:
            raise ValueError(f"this {type(optimizer).__name__} cannot withhold a step on the device; make it fused=True")
        self.lagging = withholds and world.device.type != "cpu" if lagging is None else lagging
        self.skipped = self.in_a_row = 0
        self._pending: tuple[Update, Verdict] | None = None

    def apply(self, update: Update) -> None:
        """Takes the step, or not. Collective: every rank."""
        self.settle()
        verdict = Verdict(torch.isfinite(update.grad_norm))
        if self.lagging:
            # The protocol of GradScaler.step with optimizers that know how to leave a step out.
            self.optimizer.found_inf = (~verdict.on_device).float()  # type: ignore[attr-defined]
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
            self.optimizer.step()
            del self.optimizer.found_inf, self.optimizer.grad_scale  # type: ignore[attr-defined]
            update.applied = True
            self._pending = update, verdict
        else:
            self._finish(update, verdict)

    def settle(self) -> None:
        """Reads the verdict of the last step, if that is not known yet. Collective: every rank.

        To be called before anything looks at weights, average, schedule or ``skipped`` for more than the next step.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._finish(*pending)

    def _finish(self, update: Update, verdict: Verdict) -> None:
        if verdict.read():
            if not update.applied:
                self.optimizer.step()
            update.advance()
            self.in_a_row = 0
            return
        self.skipped += 1
        self.in_a_row += 1
        line = f"step {update.batches[0].step + 1}: {self._culprit(update)}"
        if self.policy == "stop":
            raise NonFiniteError(f"{line}; the step was not taken (nonfinite=skip would go on with the next)")
        if self.in_a_row > MOST_IN_A_ROW:
            raise NonFiniteError(f"{line}; {self.in_a_row} steps in a row were not finite: skipping does not help")
        self.tell(f"{line}; skipped")

    def _culprit(self, update: Update) -> str:
        """Which rank, and which parameter. Collective: every rank."""
        losses = self._of_ranks(update.loss)
        for rank, loss in enumerate(losses):
            if not torch.isfinite(loss):
                return f"the loss on rank {rank} of {self.world.size} is {loss.item()}"
        names = [name for name, _ in _named(self.objective.module, _with_gradient(self.optimizer))]
        for rank, own in enumerate(self._of_ranks(self._own_gradient(update))):
            if (place := int(own)) >= 0:
                return f"the gradient of `{names[place]}` on rank {rank} of {self.world.size} is not finite"
        place = int((~torch.isfinite(update.norms)).int().argmax())
        return f"the averaged gradient of `{names[place]}` is not finite, though that of each rank is"

    def _of_ranks(self, value: Tensor) -> Tensor:
        """A scalar of every rank, on the CPU. Collective: every rank."""
        found = torch.zeros(self.world.size, dtype=torch.float64, device=value.device)
        found[self.world.rank] = value.double()
        reduce_sum = sum_reducer(self.world.group)
        return (found if reduce_sum is None else reduce_sum(found)).cpu()

    def _own_gradient(self, update: Update) -> Tensor:
        """Which parameter's gradient is not finite on this rank, computed once more; -1 for none. Collective.

        The weights are those of the step, because it was not taken. What the objective moves, and the generators of
        random numbers, are put back.
        """
        objective, parameters = self.objective, _with_gradient(self.optimizer)
        kept = copy.deepcopy(objective.state_dict())
        sums = [torch.zeros_like(each) for each in parameters]
        devices = [update.loss.device] if update.loss.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            objective.prepare(objective.module, update.batches, update.total)
            for batch in update.batches:
                loss = objective.loss(objective.module, batch).sum * (self.world.size / update.total)
                # Not `backward`: DDP would hear of it.
                for total, one in zip(sums, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
                    if one is not None:
                        total += one
        objective.load_state_dict(kept)
        wrong = ~torch.isfinite(torch.stack([each.sum() for each in sums]))
        return torch.where(wrong.any(), wrong.int().argmax(), -1)


class Verdict:
    """A boolean on its way from the device."""

    def __init__(self, on_device: Tensor) -> None:
        self.on_device, self._host, self._event = on_device, on_device, None
        if on_device.device.type == "cuda":
            self._host = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._host.copy_(on_device, non_blocking=True)
            self._event: Any = torch.cuda.Event()
            self._event.record()

    def read(self) -> bool:
        """Waits for the copy, not for what was queued after it."""
        if self._event is not None:
            self._event.synchronize()
        return bool(self._host)


def clip_gradients(optimizer: Optimizer, largest: float | None) -> tuple[Tensor, Tensor]:
    """Scales the gradients down to a norm of ``largest``; None leaves them. Local.

    Returns the norm over all parameters and those of each, (parameters,), both before. As nn.utils.clip_grad_norm_,
    which does not tell the latter, and after which every gradient is NaN where one was.
    """
    gradients = [each.grad for each in _with_gradient(optimizer)]
    norms = torch.stack(torch._foreach_norm(gradients))
    norm = torch.linalg.vector_norm(norms)
    if largest is not None:
        torch._foreach_mul_(gradients, (largest / (norm + 1e-6)).clamp(max=1.0))
    return norm, norms


def _with_gradient(optimizer: Optimizer) -> list[Tensor]:
    """The optimizer's parameters that have one, in its order."""
    return [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]


def _named(module: nn.Module, parameters: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    """The parameters with their names in the unwrapped module."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [(names.get(id(each), "a parameter that is not the module's"), each) for each in parameters]
