"""Which functional collectives write into an argument is as torch does it, function by function."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
import torch.distributed.nn.functional as differentiable  # noqa: E402
from validate_ddp.interpreter.values import Symbol  # noqa: E402
from validate_ddp.models.out_of_place import TORCH, is_out_of_place  # noqa: E402

pytestmark = pytest.mark.runtime

SIZE = 2


def mine() -> torch.Tensor:
    """Two numbers that no other rank has, and that no collective leaves as they are."""
    return torch.tensor([1.0, 2.0]) * (1 + dist.get_rank()) + 10


def empty() -> torch.Tensor:
    return torch.full((2,), -1.0)


ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "broadcast": lambda: (mine(), SIZE - 1),
    "gather": lambda: (mine(), 0),
    "scatter": lambda: ([mine(), mine()], 0),
    "reduce": lambda: (mine(), 0),
    "all_gather": lambda: (mine(),),
    "all_reduce": lambda: (mine(),),
    "reduce_scatter": lambda: (empty(), [mine(), mine()]),
    "_all_gather_base": lambda: (torch.zeros(4), mine()),
    "all_to_all": lambda: ([empty(), empty()], [mine(), mine()]),
    "all_to_all_single": lambda: (empty(), mine()),
}
OF_GROUP: dict[str, Callable[[], tuple[Any, ...]]] = {
    "broadcast": lambda: (mine(), SIZE - 1),
    "all_reduce": lambda: (mine(), "sum"),
    "all_reduce_coalesced": lambda: ([mine()], "sum"),
    "all_gather_single": lambda: (mine(), 0),
    "all_gather_tensor": lambda: (mine(), 0),
    "all_gather_single_coalesced": lambda: ([mine()],),
    "all_gather_into_tensor_coalesced": lambda: ([mine()],),
    "reduce_scatter_single": lambda: (mine(), "sum", 0),
    "reduce_scatter_tensor": lambda: (mine(), "sum", 0),
    "all_to_all_single": lambda: (mine(), None, None),
    "permute_tensor": lambda: (mine(), [1, 0]),
    "all_reduce_inplace": lambda: (mine(),),
    "all_gather_inplace": lambda: ([empty(), empty()], mine()),
    "all_gather_tensor_inplace": lambda: (torch.zeros(4), mine()),
    "reduce_scatter_tensor_inplace": lambda: (torch.zeros(1), mine()),
    "all_to_all_inplace": lambda: (empty(), mine()),
}
UNTRIED = ("_autograd", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")
"""Wrappers of the others, and what gloo has not."""
NO_COLLECTIVES = (
    "_meta", "_backward", "_setup_context", "_ctx", "wait_tensor", "isend_inplace", "irecv_inplace",
    "batch_p2p_ops_inplace",
)  # fmt: skip


def functions(module: Any) -> set[str]:
    """The collectives that a module defines itself."""
    own = inspect.getmembers(module, inspect.isfunction)
    names = {name for name, function in own if function.__module__ == module.__name__}
    public = {name for name in names if not name.startswith("_") and not name.endswith(NO_COLLECTIVES)}
    return public | (names & {"_all_gather_base"})


def flat(arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    tensors = [part for each in arguments for part in (each if isinstance(each, list) else [each])]
    return [part for part in tensors if isinstance(part, torch.Tensor)]


def is_filled(function: Callable[..., Any], arguments: tuple[Any, ...], **options: Any) -> bool:
    """Whether a call changes one of the tensors that it is given."""
    before = [tensor.clone() for tensor in flat(arguments)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(*arguments, **options)
    dist.barrier()
    return not all(torch.equal(old, new) for old, new in zip(before, flat(arguments), strict=True))


@pytest.mark.world_size(SIZE)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_differentiable_collective_fills_an_argument_or_not_as_the_table_says(world: Any, name: str) -> None:
    filled = is_filled(getattr(differentiable, name), ARGUMENTS[name]())
    results: list[bool] = [False] * SIZE
    dist.all_gather_object(results, filled)
    assert any(results) is not is_out_of_place(Symbol(f"torch.distributed.nn.functional.{name}"))


@pytest.mark.world_size(SIZE)
@pytest.mark.parametrize("name", OF_GROUP)
def test_a_functional_collective_fills_an_argument_or_not_as_the_table_says(world: Any, name: str) -> None:
    function = getattr(functional, name, None)
    if function is None:
        pytest.skip("not in this torch")
    filled = is_filled(function, OF_GROUP[name](), group=dist.group.WORLD)
    results: list[bool] = [False] * SIZE
    dist.all_gather_object(results, filled)
    assert any(results) is not is_out_of_place(Symbol(f"torch.distributed._functional_collectives.{name}"))


def test_every_function_of_the_two_modules_is_judged() -> None:
    assert functions(differentiable) == set(ARGUMENTS)
    known = TORCH["torch.distributed._functional_collectives"] | set(OF_GROUP)
    tried = {name for name in functions(functional) if not name.endswith(UNTRIED)}
    assert functions(functional) <= known
    assert tried <= set(OF_GROUP)
