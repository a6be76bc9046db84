"""What ranks say to each other.

`group` is a process group; WORLD, the default, is all ranks of torch.distributed, or this process where that is not
initialised; None is this process alone, and then nothing is sent. Every function is collective: every rank of the group
must call it, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

WORLD: Literal["world"] = "world"
Group: TypeAlias = "dist.ProcessGroup | Literal['world'] | None"

T = TypeVar("T")


def process_group(group: Group = WORLD) -> dist.ProcessGroup | None:
    """The group that is meant; None for this process alone. Local."""
    if not isinstance(group, str):
        return group
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


class _AllGather(torch.autograd.Function):
    """Concatenates the ranks' rows. The gradient of a rank's rows is the sum of what all ranks ask of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        lengths = [torch.empty(1, dtype=torch.int64, device=x.device) for _ in range(dist.get_world_size(group))]
        dist.all_gather(lengths, torch.tensor([len(x)], device=x.device), group=group)
        sizes = [int(length) for length in lengths]
        first = sum(sizes[: dist.get_rank(group)])
        # Backends send equal sizes only: all are filled up to the longest.
        padded = x.new_zeros(max(sizes), *x.shape[1:])
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        ctx.own = slice(first, first + len(x))
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total[ctx.own], None


def all_gather_with_grad(x: Tensor, group: Group = WORLD) -> Tensor:
    """The rows of all ranks in order of rank, with gradient. Collective: every rank, in backward too.

    x: (n_r, ...), n_r may differ between ranks and be 0, the rest may not. Returns (sum n_r, ...). For losses that need
    all samples (InfoNCE, SupCon): compute the full loss on every rank, without a factor W: the backward pass sums over
    ranks what each asks of a row, and the average of DDP divides by W again. `dist.all_gather` instead has no gradient.
    """
    found = process_group(group)
    if found is None:
        return x
    gathered: Tensor = _AllGather.apply(x, found)
    return gathered


def sum_reducer(group: Group = WORLD) -> Callable[[Tensor], Tensor] | None:
    """A function that sums a tensor over ranks into a new, detached one; None for a process alone. Local.

    The function is collective: every rank.
    """
    found = process_group(group)
    if found is None:
        return None

    def reduce_sum(tensor: Tensor) -> Tensor:
        total = tensor.detach().clone()
        dist.all_reduce(total, group=found)
        return total

    return reduce_sum


def reduce_sum_count(sum_: Tensor, count: Tensor | float, group: Group = WORLD) -> tuple[Tensor, Tensor]:
    """Sum and count over all ranks, in one message; their quotient is the mean over samples. Collective: every rank.

    sum_: any shape; count: a scalar, or a shape of its own. Returns both in float64, detached: a mean of the ranks'
    means would weigh samples by their rank, and float32 counts to 2^24 only.
    """
    kind = torch.float64 if sum_.device.type != "mps" else torch.float32  # which has no float64
    count = torch.as_tensor(count, dtype=kind, device=sum_.device)
    packed = torch.cat([sum_.detach().to(kind).flatten(), count.detach().flatten()])
    found = process_group(group)
    if found is not None:
        dist.all_reduce(packed, group=found)
    return packed[: sum_.numel()].view(sum_.shape), packed[sum_.numel() :].view(count.shape)


def sum_count(count: float, group: Group = WORLD, device: torch.device | str = "cpu") -> float | Tensor:
    """A count over all ranks: the number itself for a process alone, else a float64 scalar. Collective: every rank.

    The tensor stays on ``device`` (for nccl, a GPU): reading it would wait for all that was queued there.
    """
    found = process_group(group)
    if found is None:
        return count
    # Filled there: `torch.tensor(count, device=...)` copies from the host, and waits for the device to take it.
    total = torch.full((), float(count), dtype=torch.float64, device=device)
    dist.all_reduce(total, group=found)
    return total


def broadcast_object(value: T, group: Group = WORLD, src: int = 0) -> T:
    """Rank ``src``'s value, pickled, on every rank. Collective: every rank.

    src: a rank within the group.
    """
    found = process_group(group)
    if found is None:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=dist.get_global_rank(found, src), group=found)
    return box[0]


def gather_objects(value: T, group: Group = WORLD) -> list[T]:
    """Every rank's value, pickled, on every rank, in order of rank. Collective: every rank."""
    found = process_group(group)
    if found is None:
        return [value]
    box: list[Any] = [None] * dist.get_world_size(found)
    dist.all_gather_object(box, value, group=found)
    return box
