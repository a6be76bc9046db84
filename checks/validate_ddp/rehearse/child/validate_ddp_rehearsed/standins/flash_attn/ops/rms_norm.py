"""flash_attn.ops.rms_norm: the same layer under its older name."""

from .triton.layer_norm import RMSNorm

__all__ = ["RMSNorm"]
