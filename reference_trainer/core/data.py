"""From the plan to batches: which samples this rank sees in each micro-step, fetched by a loader.

The order of samples is a permutation of (seed, epoch). One stream runs through all epochs, so a run that starts at any
step, with any number of workers, sees what the uninterrupted one sees.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .objective import Batch
from .plan import Plan

GOLDEN, FIRST, SECOND, MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1
"""Of SplitMix64."""


class Source(Protocol):
    """Samples by position. What it draws must be keyed by the sample (`randomness`), never by a global generator."""

    def __len__(self) -> int: ...

    def fetch(self, index: Tensor, epoch: int) -> dict[str, Tensor]:
        """The samples at ``index``, (n,) int64, as (n, ...) each. Local; runs in loader workers."""


class Request(NamedTuple):
    """What a loader is to fetch."""

    epoch: int
    step: int
    index: Tensor


class PlannedBatches:
    """The batch sampler: this rank's share of each micro-step, over all epochs of the plan. Local.

    start_step: the optimizer step to begin with. Iterating it again begins there again.
    """

    def __init__(self, plan: Plan, rank: int, *, seed: int, start_step: int = 0) -> None:
        self.plan, self.rank, self.seed, self.start_step = plan, rank, seed, start_step

    def __len__(self) -> int:
        return max(0, self.plan.optimizer_steps - self.start_step) * self.plan.accumulation

    def __iter__(self) -> Iterator[Request]:
        plan, epoch, order = self.plan, -1, torch.empty(0)
        shares = [plan.rank_positions(self.rank, micro_step) for micro_step in range(plan.accumulation)]
        for step in range(self.start_step, plan.optimizer_steps):
            if step // plan.optimizer_steps_per_epoch != epoch:
                epoch = step // plan.optimizer_steps_per_epoch
                order = epoch_order(plan, epoch, seed=self.seed)
            start = (step % plan.optimizer_steps_per_epoch) * plan.effective_batch_size
            for share in shares:
                yield Request(epoch, step, order[start + share.start : start + share.stop])


def epoch_order(plan: Plan, epoch: int, *, seed: int) -> Tensor:
    """The samples of one epoch, in order, filled up or cut to whole global batches: (steps * global batch,) int64.

    Depends on neither rank nor world size. Local.
    """
    positions = plan.samples * plan.repeat
    order = keyed_order(positions, seed=seed, tag="order", step=epoch) % plan.samples
    whole = plan.optimizer_steps_per_epoch * plan.effective_batch_size
    return order.repeat(-(-whole // positions))[:whole]


def seed_of(*parts: int | str) -> int:
    """A 63-bit seed from numbers and names, well mixed: (0, 1) and (1, 0) differ in half of the bits."""
    key = 0
    for part in parts:
        value = zlib.crc32(part.encode()) if isinstance(part, str) else part
        key = _mix_int((key * 3 + value + GOLDEN) & MASK)
    return key >> 1


def _mix_int(z: int) -> int:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014)."""
    z = ((z ^ (z >> 30)) * FIRST) & MASK
    z = ((z ^ (z >> 27)) * SECOND) & MASK
    return z ^ (z >> 31)


def keyed_order(count: int, *, seed: int, tag: str, step: int = 0) -> Tensor:
    """A permutation of 0 .. count-1 as int64 on the CPU; arguments as in `randomness`. Local."""
    generator = torch.Generator().manual_seed(seed_of(seed, tag, step))
    return torch.randperm(count, generator=generator)


class _Fetched(Dataset[Batch]):
    """A source as the loader wants it: it gets a whole request at once, and gives what needs no collation."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, request: Request) -> Batch:
        return Batch(request.index, request.epoch, request.step, self.source.fetch(request.index, request.epoch))


def loader(
    source: Source,
    sampler: PlannedBatches,
    *,
    workers: int = 0,
    pin_memory: bool = False,
    in_worker: Callable[[int], None] | None = None,
) -> DataLoader[Batch]:
    """Batches in the sampler's order. in_worker: called first in each worker, with its number. Local.

    It has a generator of its own: making a loader, or the number of its workers, moves no other random number.
    """
    return DataLoader(
        _Fetched(source),
        sampler=sampler,
        batch_size=None,
        num_workers=workers,
        pin_memory=pin_memory,
        generator=torch.Generator().manual_seed(seed_of(sampler.seed, "loader")),
        worker_init_fn=in_worker,
    )
