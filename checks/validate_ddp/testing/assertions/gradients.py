"""That ranks on their shares compute the gradient which one process computes on the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .exchange import first_difference, gathered, rank_and_size

__tracebackhide__ = True  # pytest shows the line of the test that called, not ours


def assert_gradient_matches_single_process(
    build: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    *,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-7,
) -> None:
    """Collective. The gradient of ``wrap(build())`` on the ranks' shares of ``batch`` is that of one process on all.

    build: makes the model, the same on every call (the RNG is put back between them). loss: of (model, batch),
    a scalar. batch: the global batch, the same on every rank: a tensor, or tuples, lists and mappings of tensors whose
    first dimension the world size divides. wrap: default ``DistributedDataParallel``. The single process is this one,
    with a process group of its own rank only: collectives in the loss see a world of one. Models in float64 allow tight
    tolerances. Raises on every rank: the first parameter, index, rank, both values and their ratio.
    """
    rank, size = rank_and_size()
    random_state = torch.get_rng_state()
    # Collective, so outside of all conditions: each rank's group of its own.
    alone = [dist.new_group([each]) for each in range(size)][rank] if size > 1 else None
    with _world_of_one(alone):
        oracle = build()
        loss(oracle, batch).backward()
    expected = _gradients(oracle)
    torch.set_rng_state(random_state)
    model = build()
    if wrap is not None:
        wrapped = wrap(model)
    elif size > 1:
        wrapped = nn.parallel.DistributedDataParallel(model)
    else:
        wrapped = model
    loss(wrapped, _share(batch, rank, size)).backward()
    found = _gradients(model)
    del wrapped  # before the group: see fixtures/README.md on what torch 2.13 does otherwise
    problem = _first_problem(found, expected, rtol, atol)
    for other, theirs in enumerate(gathered(problem)):
        if theirs:
            raise AssertionError(f"rank {other}: {theirs}")


def _first_problem(
    found: dict[str, Tensor | None], expected: dict[str, Tensor | None], rtol: float, atol: float
) -> str:
    if list(found) != list(expected):
        return "`build` made another model the second time: " + ", ".join(sorted(set(found) ^ set(expected))[:3])
    for name, right in expected.items():
        left = found[name]
        if left is None or right is None:
            if left is not right:
                has, lacks = ("a single process", "the ranks") if left is None else ("the ranks", "a single process")
                return f"gradient of {name!r}: {has} have one, {lacks} do not"
            continue
        difference = first_difference(left, right, rtol, atol)
        if difference:
            scale = float((left * right).sum() / (right * right).sum()) if bool((right != 0).any()) else float("nan")
            return f"gradient of {name!r} {difference} from a single process; {_ratio(scale)}"
    return ""


def _ratio(scale: float) -> str:
    return f"on the whole {scale:.4g} times the single process's (a sum where a mean is meant?)"


def _gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if each.grad is None else each.grad.detach().clone() for name, each in model.named_parameters()}


def _share(value: Any, rank: int, size: int) -> Any:
    if isinstance(value, Tensor):
        if len(value) % size:
            raise ValueError(
                f"a batch of {len(value)} does not divide by {size} ranks: the mean of their means is another mean"
            )
        return value.chunk(size)[rank]
    if isinstance(value, dict):
        return {name: _share(item, rank, size) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_share(item, rank, size) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


@contextmanager
def _world_of_one(group: Any) -> Iterator[None]:
    """Within it the default process group is ``group``, which has this rank alone; None: nothing changes."""
    if group is None:
        yield
        return
    from torch.distributed import distributed_c10d as c10d

    whole = c10d._get_default_group()
    c10d._update_default_pg(group)
    try:
        yield
    finally:
        c10d._update_default_pg(whole)
