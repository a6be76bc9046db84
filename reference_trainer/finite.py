"""What happens when a loss or a gradient is not finite: the step is withheld, named, and the run stops or not.

The averaged gradient is the same on all ranks, so all decide alike. On a GPU the verdict is not waited for: a fused
optimizer reads it on the device, as with a GradScaler, and the host one step later. In float16 overflows are expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from .core.collectives import gather_objects
from .core.launch import World
from .core.objective import Objective
from .core.step import EachStep, Update
from .precision import UNSCALED
from .state import whole

MOST_IN_A_ROW = 20
"""Skipped steps in a row after which a run stops all the same. A GradScaler that begins at 2^16 is at 1 after 16."""


class NonFiniteError(ArithmeticError):
    """A loss or a gradient is not finite; one line: at which step, on which rank or in which parameter."""


class Gate(EachStep):
    """Around an optimizer: lets finite updates through to it.

    policy: "stop" raises NonFiniteError on every rank, with the weights of before the step; "skip" goes on, at most
    `MOST_IN_A_ROW` times in a row. lagging: the verdict is read one step later; by default on a GPU, fused, unsharded.
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
        scaler: GradScaler = UNSCALED,
    ) -> None:
        super().__init__(optimizer)
        self.objective, self.world, self.policy, self.tell = objective, world, policy, tell
        self.scaler = scaler
        withholds = bool(getattr(optimizer, "_step_supports_amp_scaling", False))  # fused ones do
        sharded = any(isinstance(each, DTensor) for each in objective.module.parameters())
        self.lagging = withholds and not sharded and world.device.type != "cpu" if lagging is None else lagging
        self.skipped = self.overflows = self.in_a_row = 0
        """Steps that were left out: for what is wrong, for a loss that was scaled too much, and of both the last."""
        self._pending: tuple[Update, Callable[[], bool]] | None = None

    def scale(self, loss: Tensor) -> Tensor:
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self) -> None:
        self.scaler.unscale_(self.optimizer)

    def apply(self, update: Update) -> Tensor:
        """Takes the step, or not; returns whether, as a boolean on the device. Collective: every rank."""
        self.settle()
        verdict = torch.isfinite(whole(update.grad_norm))
        read = _on_its_way(verdict)
        self.scaler.update()  # from what it found when it unscaled them; it does not wait for the device
        if self.lagging:
            # The protocol of GradScaler.step with optimizers that know how to leave a step out.
            self.optimizer.found_inf = (~verdict).float()
            self.optimizer.grad_scale = None
            self.optimizer.step()
            del self.optimizer.found_inf, self.optimizer.grad_scale
            self._pending = update, read
        else:
            self._finish(update, read, applied=False)
        return verdict

    def settle(self) -> None:
        """Reads the verdict of the last step, if that is not known yet. Collective: every rank.

        To be called before anything looks at weights, average, schedule or ``skipped`` for more than the next step.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._finish(*pending, applied=True)

    def _finish(self, update: Update, finite: Callable[[], bool], *, applied: bool) -> None:
        """applied: the optimizer has had it, and has left out by itself what is not finite."""
        if finite():
            if not applied:
                self.optimizer.step()
            update.advance()
            self.in_a_row = 0
            return
        self.in_a_row += 1
        line, hint = f"step {update.batches[0].step + 1}: ", ""
        losses = gather_objects(update.loss.item(), self.world.group)
        if self.scaler.is_enabled():
            scale = self.scaler.get_scale()
            if self.in_a_row <= MOST_IN_A_ROW and all(abs(each) < float("inf") for each in losses):
                self.overflows += 1
                self.tell(f"{line}a gradient overflowed in float16; skipped, the loss is scaled by {scale:g} from here")
                return
            hint = f", nor does a loss scale of {scale:g}; bf16 has float32's range"
        self.skipped += 1
        line += self._culprit(update, losses)
        if self.in_a_row > MOST_IN_A_ROW:
            told = f"{self.in_a_row} steps in a row were not finite: skipping does not help{hint}"
            raise NonFiniteError(f"{line}; {told}")
        if self.policy == "stop":
            raise NonFiniteError(f"{line}; the step was not taken (nonfinite=skip would go on with the next)")
        self.tell(f"{line}; skipped")

    def _culprit(self, update: Update, losses: list[float]) -> str:
        """Which rank, by its loss; else which parameter, by its averaged gradient. Collective where it is sharded."""
        for rank, value in enumerate(losses):
            if not abs(value) < float("inf"):
                return f"on rank {rank} of {self.world.size} the loss is {value:g}"
        place = int((~torch.isfinite(whole(update.norms))).int().argmax())
        given = [each for group in self.optimizer.param_groups for each in group["params"] if each.grad is not None]
        named = self.objective.module.named_parameters()
        name = next((name for name, each in named if each is given[place]), "a parameter that is not the module's")
        return f"the averaged gradient of `{name}` is not finite, though each rank's loss is"


def _on_its_way(verdict: Tensor) -> Callable[[], bool]:
    """What reads a boolean from the device: it waits for the copy, not for what was queued after it."""
    if verdict.device.type != "cuda":
        return lambda: bool(verdict)
    host, event = torch.empty((), dtype=torch.bool, pin_memory=True), torch.cuda.Event()
    host.copy_(verdict, non_blocking=True)
    event.record()

    def read() -> bool:
        event.synchronize()
        return bool(host)

    return read
