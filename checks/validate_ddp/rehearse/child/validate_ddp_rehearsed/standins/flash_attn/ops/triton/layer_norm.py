"""flash_attn.ops.triton.layer_norm: sum with the residual, then LayerNorm or RMSNorm, in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def layer_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, eps: float = 1e-6,
    dropout_p: float = 0.0, prenorm: bool = False, residual_in_fp32: bool = False, is_rms_norm: bool = False,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """The normalised sum; prenorm: and the sum."""
    total = nn.functional.dropout(x, dropout_p, training=dropout_p > 0).float()
    total = total if residual is None else total + residual.float()
    centred = total if is_rms_norm else total - total.mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight.float()
    found = (scaled if bias is None else scaled + bias.float()).to(x.dtype)
    return (found, total if residual_in_fp32 else total.to(x.dtype)) if prenorm else found


def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, **kwargs: Any) -> Any:
    """RMSNorm of the sum."""
    return layer_norm_fn(x, weight, bias, is_rms_norm=True, **kwargs)


class RMSNorm(nn.Module):  # type: ignore[misc] # torch is no part of the check
    """``rms_norm_fn`` with a weight of its own."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, dropout_p: float = 0.0, **kwargs: Any) -> None:
        super().__init__()
        self.eps, self.dropout_p = eps, dropout_p
        self.weight, self.bias = nn.Parameter(torch.ones(hidden_size, **kwargs)), None

    def forward(self, x: Tensor, residual: Tensor | None = None, **kwargs: Any) -> Any:
        dropout = self.dropout_p if self.training else 0.0
        return rms_norm_fn(x, self.weight, residual=residual, eps=self.eps, dropout_p=dropout, **kwargs)
