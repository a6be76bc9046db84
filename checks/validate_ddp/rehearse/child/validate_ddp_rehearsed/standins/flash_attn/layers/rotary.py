"""flash_attn.layers.rotary: rotary position embedding, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rotary_emb(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False, seqlen_offsets: int = 0
) -> Tensor:
    """x: (batch, length, heads, size); cos, sin: (positions, half of the dimensions that are turned)."""
    turned = 2 * cos.shape[-1]
    rows = slice(seqlen_offsets, seqlen_offsets + x.shape[1])
    cos, sin = cos[rows, None], sin[rows, None]
    part = x[..., :turned]
    first, second = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, dim=-1)
    both = (first * cos - second * sin, second * cos + first * sin)
    found = torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, -1)
    found = torch.cat((found.to(x.dtype), x[..., turned:]), -1)
    return x.copy_(found) if inplace else found
