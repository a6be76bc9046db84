"""Collectives that leave their arguments alone and return the result, library by library."""

from __future__ import annotations

from validate_ddp.interpreter.values import Symbol

_DIFFERENTIABLE = frozenset("all_gather all_reduce broadcast gather reduce scatter".split())
"""Of torch.distributed.nn.functional. The others write into their first argument and return it, with a gradient:
``all_to_all``, ``all_to_all_single``, ``reduce_scatter``, ``_all_gather_base``. A test holds this to torch."""
_FUNCTIONAL = frozenset(
    """all_gather_into_tensor_coalesced all_gather_single all_gather_single_autograd all_gather_single_coalesced
    all_gather_tensor all_gather_tensor_autograd all_reduce all_reduce_coalesced all_to_all_single
    all_to_all_single_autograd broadcast permute_tensor reduce_scatter_single reduce_scatter_single_autograd
    reduce_scatter_single_coalesced reduce_scatter_tensor reduce_scatter_tensor_autograd
    reduce_scatter_tensor_coalesced""".split()
)
"""Of torch.distributed._functional_collectives; those that write into an argument are called ``..._inplace``."""

TORCH = {
    "torch.distributed.nn": _DIFFERENTIABLE,
    "torch.distributed.nn.functional": _DIFFERENTIABLE,
    "torch.distributed._functional_collectives": _FUNCTIONAL,
}
_HOROVOD = frozenset(
    "allreduce allgather allgather_object broadcast broadcast_object alltoall reducescatter grouped_allreduce".split()
)


def is_out_of_place(symbol: Symbol) -> bool:
    """Whether a collective leaves its arguments alone and returns the result."""
    holder, _, last = symbol.name.rpartition(".")
    if holder in TORCH:
        return last in TORCH[holder]
    if symbol.name.startswith("horovod.torch."):
        return last in _HOROVOD
    return symbol.name.startswith("mpi4py.") and last.islower() and last != "barrier"
