"""apex.parallel: PyTorch's own wrapper and its synchronised BatchNorm."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import SyncBatchNorm


def DistributedDataParallel(module: nn.Module, *args: Any, **kwargs: Any) -> nn.parallel.DistributedDataParallel:
    """PyTorch's wrapper, which has none of apex's options."""
    return nn.parallel.DistributedDataParallel(module)


def convert_syncbn_model(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """With SyncBatchNorm in the place of every BatchNorm."""
    return SyncBatchNorm.convert_sync_batchnorm(module)


__all__ = ["DistributedDataParallel", "SyncBatchNorm", "convert_syncbn_model"]
