"""Attention over sharded tensors: the CPU's fused kernel knows no shards, so it is computed from its parts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..patching import Original, patch

if TYPE_CHECKING:
    from torch import Tensor

    from ..session import Session


def install(session: Session) -> None:
    """Local. Patches ``scaled_dot_product_attention``; tensors that are whole take the kernel that they would."""
    torch = session.torch

    def by_parts(original: Original) -> Original:
        def attention(query: Tensor, *args: object, **kwargs: object) -> object:
            if type(query).__name__ != "DTensor":
                return original(query, *args, **kwargs)
            session.note("attention over DTensors is computed without a fused kernel")
            whole = import_module("torch.distributed.tensor.experimental").implicit_replication
            # A causal mask is made on the way, as a plain tensor.
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), whole():
                return original(query, *args, **kwargs)

        return attention

    patch(torch.nn.functional, "scaled_dot_product_attention", by_parts)
