"""That every rank holds the same: parameters, buffers, optimizer states, gathered values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .exchange import bytes_of, first_difference, gathered, gathered_tensors, rank_and_size

__tracebackhide__ = True  # pytest shows the line of the test that called, not ours


def assert_replicas_equal(model: Any, *, rtol: float = 0.0, atol: float = 0.0, step: int | None = None) -> None:
    """Collective. Every rank's copy is the same, bit for bit unless a tolerance is given: no update was missed.

    model: a module (parameters and buffers), an optimizer, or a state_dict (nested mappings and lists of tensors and
    plain values). step: named in the message. Raises on every rank: the first name, index, rank and both values.
    """
    leaves = dict(_leaves(model))
    at = "" if step is None else f" after step {step}"
    everyone = gathered({name: _fingerprint(value) for name, value in leaves.items()})
    reference = everyone[0]
    for rank, theirs in enumerate(everyone):
        for name in reference:
            if name not in theirs:
                raise AssertionError(f"replicas differ{at}: rank {rank} has no {name!r}, which rank 0 has")
        for name in theirs:
            if name not in reference:
                raise AssertionError(f"replicas differ{at}: rank {rank} has {name!r}, which rank 0 has not")
    for name in reference:
        others = [rank for rank, theirs in enumerate(everyone) if theirs[name] != reference[name]]
        if not others:
            continue
        kinds = [theirs[name][0] for theirs in everyone]
        odd = next((rank for rank in others if kinds[rank] != kinds[0]), None)
        if odd is not None or kinds[0][0] == "value":
            rank = others[0] if odd is None else odd
            raise AssertionError(
                f"replicas differ{at} in {name!r}: rank {rank} has {everyone[rank][name]}, rank 0 has {reference[name]}"
            )
        # Every rank comes here for the same names: what is compared was gathered.
        tensors = gathered_tensors(leaves[name])
        for rank in others:
            difference = first_difference(tensors[rank], tensors[0], rtol, atol)
            if difference:
                raise AssertionError(
                    f"replicas differ{at} in {name!r} on rank {rank} {difference} as on rank 0; "
                    "in a single process there is one copy"
                )


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.nn.Module):
        yield from value.named_parameters(remove_duplicate=False)
        yield from value.named_buffers(remove_duplicate=False)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _leaves(value.state_dict(), name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{name}[{index}]")
    else:
        yield name or "value", value


def _fingerprint(value: Any) -> tuple[tuple[Any, ...], str]:
    if not isinstance(value, Tensor):
        return ("value", type(value).__name__), repr(value)
    kind = ("tensor", tuple(value.shape), str(value.dtype))
    return kind, hashlib.sha256(bytes_of(value)).hexdigest()


def assert_gathers_to(gathered_value: Tensor, expected: Tensor, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Local: every rank on its own. What a gather gave here is what a single process would have had as a whole.

    Raises with the first index, both values and the rank; a whole that is right in another order is named as such.
    """
    rank, size = rank_and_size()
    difference = first_difference(gathered_value.detach(), expected, rtol, atol)
    if not difference:
        return
    hint = ""
    if gathered_value.shape == expected.shape and expected.ndim and len(expected):
        rows = sorted(map(str, gathered_value.detach().tolist()))
        if rows == sorted(map(str, expected.tolist())):
            hint = "; the same rows in another order: ranks interleaved?"
    elif gathered_value.ndim and expected.ndim and len(gathered_value) * size == len(expected):
        hint = f"; only one rank's part of {size}: not gathered?"
    raise AssertionError(f"what rank {rank} gathered is not what a single process has: {difference}{hint}")
