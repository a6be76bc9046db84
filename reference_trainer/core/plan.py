"""What a run will do, from numbers alone: who sees which position of each batch, how many steps, which learning rate.

Pure arithmetic, torch-free. The trainer executes exactly this, and prints it first.

An epoch is ``samples * repeat`` positions, cut into global batches; the last one is filled from the epoch's start, or
dropped. So the global batches, and with them the result, do not depend on the number of ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from . import ConfigError

LrScaling = Literal["none", "linear", "sqrt"]


class PlanError(ConfigError):
    """Numbers that make no run; the message is one line: what, where, what to do."""


@dataclass(frozen=True)
class Plan:
    """A run in numbers; made by ``Plan.make``, which checks them. Local."""

    samples: int
    """Samples of the data."""
    repeat: int
    """How often each occurs in an epoch."""
    world_size: int
    batch_size: int
    """Samples of a micro-step on one rank."""
    accumulation: int
    """Micro-steps of an optimizer step."""
    drop_last: bool
    """The last, incomplete global batch of an epoch is dropped; else it is filled from the epoch's start."""
    optimizer_steps: int
    """Of the whole run."""
    lr: float
    """Peak learning rate, scaled."""

    @classmethod
    def make(
        cls,
        *,
        samples: int,
        world_size: int,
        global_batch: int | None = None,
        batch_size: int | None = None,
        accumulation: int = 1,
        repeat: int = 1,
        drop_last: bool = False,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float = 1e-3,
        lr_scaling: LrScaling = "none",
        base_batch: int | None = None,
    ) -> Plan:
        """The plan; ``PlanError`` where there is none.

        global_batch: samples of an optimizer step over all ranks and micro-steps; or batch_size: of a micro-step on
        one rank. epochs or steps (optimizer steps). lr: at ``base_batch`` where it is scaled. Local.
        """
        counts = {"samples": samples, "world_size": world_size, "accumulation": accumulation, "repeat": repeat}
        choices = {"global_batch": global_batch, "batch_size": batch_size, "epochs": epochs, "steps": steps}
        for name, value in {**counts, **choices}.items():
            if value is not None and value < 1:
                raise PlanError(f"{name} is {value}; it must be at least 1")
        if (epochs is None) == (steps is None):
            raise PlanError(f"epochs is {epochs} and steps is {steps}; give exactly one of them")
        if not 0 < lr < math.inf:
            raise PlanError(f"lr is {lr}; it must be above 0")
        rows = rows_per_rank(global_batch, batch_size, world_size, accumulation)
        effective = rows * world_size * accumulation
        positions = samples * repeat
        per_epoch = positions // effective if drop_last else -(-positions // effective)
        if per_epoch == 0:
            raise PlanError(
                f"drop_last leaves nothing: an epoch has {positions} samples and a global batch {effective}; "
                "make the batch smaller, or keep the last one"
            )
        total = steps if steps is not None else (epochs or 0) * per_epoch
        peak = lr * _lr_factor(lr_scaling, effective, base_batch)
        return cls(samples, repeat, world_size, rows, accumulation, drop_last, total, peak)

    @property
    def effective_batch_size(self) -> int:
        """Samples of an optimizer step over all ranks and micro-steps: the global batch."""
        return self.batch_size * self.world_size * self.accumulation

    @property
    def positions(self) -> int:
        """Samples of an epoch, repetitions counted, before it is filled or cut."""
        return self.samples * self.repeat

    @property
    def optimizer_steps_per_epoch(self) -> int:
        """Global batches of an epoch."""
        whole, rest = divmod(self.positions, self.effective_batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def micro_steps_per_epoch(self) -> int:
        """Forward and backward passes of each rank in an epoch."""
        return self.optimizer_steps_per_epoch * self.accumulation

    @property
    def samples_per_rank(self) -> int:
        """Samples that each rank sees in an epoch: the same number on all."""
        return self.micro_steps_per_epoch * self.batch_size

    @property
    def padded(self) -> int:
        """Samples of an epoch that are seen once more, to fill its last global batch."""
        return max(0, self.optimizer_steps_per_epoch * self.effective_batch_size - self.positions)

    @property
    def dropped(self) -> int:
        """Samples of an epoch that are not seen."""
        return max(0, self.positions - self.optimizer_steps_per_epoch * self.effective_batch_size)

    @property
    def epochs(self) -> float:
        """Passes over the data; a fraction where the run is given in steps."""
        return self.optimizer_steps / self.optimizer_steps_per_epoch

    def rank_positions(self, rank: int, micro_step: int) -> range:
        """Positions inside a global batch that ``rank`` sees in ``micro_step`` (0 is the step's first). Local.

        Micro-steps cut the batch first, ranks cut the micro-step: at one accumulation the micro-steps hold the same
        samples whatever the number of ranks.
        """
        if not 0 <= rank < self.world_size or not 0 <= micro_step < self.accumulation:
            raise PlanError(
                f"rank {rank}, micro-step {micro_step}: the plan has ranks 0 to {self.world_size - 1} "
                f"and micro-steps 0 to {self.accumulation - 1}"
            )
        start = (micro_step * self.world_size + rank) * self.batch_size
        return range(start, start + self.batch_size)


def rows_per_rank(global_batch: int | None, batch_size: int | None, world_size: int, accumulation: int) -> int:
    """Samples of a micro-step on one rank; ``PlanError`` where the global batch cannot be shared evenly. Local."""
    if (global_batch is None) == (batch_size is None):
        raise PlanError(f"global_batch is {global_batch} and batch_size is {batch_size}; give exactly one of them")
    if batch_size is not None:
        return batch_size
    assert global_batch is not None
    if global_batch % accumulation:
        raise PlanError(
            f"a global batch of {global_batch} cannot be cut into {accumulation} micro-steps; "
            f"accumulation {_nearest_divisors(global_batch, accumulation)} can"
        )
    micro_batch = global_batch // accumulation
    if micro_batch % world_size:
        part = f"each of its {accumulation} micro-steps ({micro_batch} samples)" if accumulation > 1 else "it"
        raise PlanError(
            f"a global batch of {global_batch} cannot be shared by {world_size} ranks: {part} must be divisible by "
            f"their number; {_nearest_divisors(micro_batch, world_size)} ranks can"
        )
    return micro_batch // world_size


def _nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of ``number`` next to ``wanted`` (which is none), such as "2 or 4", the nearer one first."""
    below = next(each for each in range(min(wanted, number), 0, -1) if number % each == 0)
    above = next((each for each in range(wanted + 1, number + 1) if number % each == 0), None)
    if above is None:
        return str(below)
    first, second = sorted((below, above), key=lambda each: abs(each - wanted))
    return f"{first} or {second}"


def _lr_factor(scaling: LrScaling, effective: int, base_batch: int | None) -> float:
    """By how much the learning rate grows: linearly (Goyal et al. 2017), by the root (Krizhevsky 2014), or not."""
    if scaling == "none":
        return 1.0
    if base_batch is None or base_batch < 1:
        raise PlanError(
            f"lr_scaling is {scaling!r} and base_batch is {base_batch}; give the batch that lr was chosen for"
        )
    if scaling == "linear":
        return effective / base_batch
    if scaling == "sqrt":
        return math.sqrt(effective / base_batch)
    raise PlanError(f"lr_scaling is {scaling!r}; it is one of none, linear, sqrt")
