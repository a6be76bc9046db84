"""What is trained: a module and its loss, summed over samples. To train something else, write one of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


@dataclass
class Batch:
    """Samples of one micro-step on one rank."""

    index: Tensor
    """(n,) int64: the samples' positions in their source; what keyed randomness is keyed by."""
    epoch: int
    step: int
    """The optimizer step (0 is the first)."""
    data: dict[str, Tensor] = field(default_factory=dict)
    """Each (n, ...)."""

    def __len__(self) -> int:
        return len(self.index)

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """On a device, floating-point data in ``dtype``. From pinned memory the copy does not block."""
        moved = {
            name: value.to(device, dtype if value.is_floating_point() else None, non_blocking=True)
            for name, value in self.data.items()
        }
        return Batch(self.index.to(device, non_blocking=True), self.epoch, self.step, moved)

    def pin_memory(self) -> Batch:
        """In page-locked memory; the loader calls this."""
        pinned = {name: value.pin_memory() for name, value in self.data.items()}
        return Batch(self.index.pin_memory(), self.epoch, self.step, pinned)


Forward = Callable[..., Any]
"""The module as it is called in training: wrapped in DDP where there are several ranks."""


class Loss(NamedTuple):
    """The loss of one micro-batch on one rank, as sums: `train_step` divides by the count over all ranks."""

    sum: Tensor
    """Scalar with graph: the sum of the samples' losses."""
    metrics: dict[str, Tensor]
    """Detached scalars, sums over the samples: logged as means over all samples of all ranks."""
    values: dict[str, Tensor]
    """Detached scalars that are equal on all ranks already: logged as they are, averaged over steps."""


class Objective:
    """A module and its loss. Subclasses set ``module`` and give ``loss``; the rest has a default.

    module: ALL trainable parts (but estimators that train themselves), as one module, because DDP averages the
    gradients of what it wraps and of nothing else.
    """

    module: nn.Module
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's averages, where the configuration does not say (`optim.betas`)."""

    def count(self, batch: Batch) -> int:
        """What the loss is a mean over: samples. An objective over tokens counts those it does not mask. Local.

        From the batch alone, before any forward pass: the first backward pass of an accumulated step needs the count
        of all micro-steps on all ranks.
        """
        return len(batch)

    def prepare(self, forward: Forward, batches: Sequence[Batch], total: float | Tensor) -> None:
        """Called once per optimizer step, before its first ``loss``: what needs the union of the micro-batches.

        total: the count over ``batches`` on all ranks. Collective: every rank.
        """

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        """The loss of one micro-batch; calls ``forward`` once, and nothing trainable beside it. Collective."""
        raise NotImplementedError

    def rehearse(self, forward: Forward, batch: Batch) -> Tensor:
        """A scalar whose gradient reaches what ``loss``'s does, for a backward pass that is thrown away. Collective.

        Moves nothing: an objective with state of its own, or whose ``loss`` needs ``prepare``, overrides it.
        """
        return self.loss(forward, batch).sum

    def evaluate(self, module: Forward, batch: Batch) -> dict[str, Tensor]:
        """Metrics of a batch that is not trained on: detached scalars, sums over its samples.

        module: unwrapped, in evaluation mode, gradients off; under autocast where training is. To be called, and no
        more. Local: ranks have different numbers of batches.
        """
        raise NotImplementedError

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimizer gets. Local.

        A group may have `weight_decay`, in place of the run's, and `lr_factor`, which multiplies the run's learning
        rate. What is not trained has `requires_grad` off before ``module`` is wrapped, and is in no group.
        """
        return [{"params": [each for each in self.module.parameters() if each.requires_grad]}]

    def blocks(self) -> list[nn.Module]:
        """Modules that may be recomputed in the backward pass, in place of keeping what they computed. Local."""
        return []

    def begin(self, folder: Path) -> None:
        """Called once by a run, before its first step: writes to the run directory what belongs there, beside
        checkpoints and metrics. Rank zero only, no collective.
        """

    def draw(self, module: nn.Module, folder: Path, step: int) -> Path | None:
        """Draws a picture of what the module has learned into ``folder``, and returns its path; None for nothing.

        Called after each evaluation and at the end. module: unwrapped, with the averaged weights where there are some,
        in evaluation mode, gradients off. Rank zero only, no collective: the other ranks wait in their next one.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """What training moves outside of ``module``: estimators, their optimizers and counters. Local."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes in what ``state_dict`` gave. Collective: every rank."""
