"""What the assertions share: every rank's view of a value, and the first difference of two tensors."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__tracebackhide__ = True  # pytest shows the line of the test that called, not ours


def rank_and_size() -> tuple[int, int]:
    """This rank and the world size; (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gathered(value: Any) -> list[Any]:
    """Every rank's value, by rank. Collective: every rank."""
    _, size = rank_and_size()
    if size == 1:
        return [value]
    # Not all_gather_object: it needs numpy, which torch does not.
    raw = bytearray(pickle.dumps(value))
    sizes = gathered_tensors(torch.tensor([len(raw)]))
    longest = max(int(each) for each in sizes)
    padded = torch.frombuffer(raw + bytes(longest - len(raw)), dtype=torch.uint8)
    return [
        pickle.loads(bytes_of(each)[: int(length)])  # noqa: S301 - of our own ranks
        for each, length in zip(gathered_tensors(padded), sizes, strict=True)
    ]


def bytes_of(value: Tensor) -> bytes:
    """The memory of a tensor. Local."""
    data = value.detach().cpu().contiguous()
    return ctypes.string_at(data.data_ptr(), data.numel() * data.element_size()) if data.numel() else b""


def gathered_tensors(value: Tensor) -> list[Tensor]:
    """Every rank's tensor, all of one shape and type. Collective: every rank."""
    _, size = rank_and_size()
    if size == 1:
        return [value]
    value = value.detach().contiguous()
    values = [torch.empty_like(value) for _ in range(size)]
    dist.all_gather(values, value)
    return values


def first_difference(found: Tensor, expected: Tensor, rtol: float = 0.0, atol: float = 0.0) -> str:
    """`at [1, 2]: 3.0, expected 4.0`, of the first element that differs; empty where none does. Local."""
    if found.shape != expected.shape:
        return f"has shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if found.dtype != expected.dtype:
        return f"is {found.dtype}, expected {expected.dtype}"
    if rtol or atol:
        same = torch.isclose(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    else:
        same = (found == expected) | ((found != found) & (expected != expected))
    if bool(same.all()):
        return ""
    index = (~same).nonzero()[0].tolist()
    many = int((~same).sum())
    left, right = found[tuple(index)].item(), expected[tuple(index)].item()
    place = f"at {index}" if index else "differs"
    return f"{place}: {left!r}, expected {right!r} ({many} of {found.numel()} elements differ)"
