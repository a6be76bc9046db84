"""SyncBatchNorm on CPU tensors: statistics of the whole batch over all ranks, with their gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..patching import Handed, Original, patch

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.nn import Module, SyncBatchNorm

    from ..session import Session


def install(session: Session) -> None:
    """Local. Patches ``SyncBatchNorm.forward``; in training it is a collective, as the original: every rank."""
    torch = session.torch

    class Sum(torch.autograd.Function):  # type: ignore[misc,name-defined]
        """Sum over ranks, whose gradient is the sum of the ranks' gradients."""

        @staticmethod
        def forward(ctx: Handed, value: Tensor, group: ProcessGroup | None) -> Tensor:
            ctx.group = group
            total = value.clone()
            torch.distributed.all_reduce(total, group=group)
            return total

        @staticmethod
        def backward(ctx: Handed, gradient: Tensor) -> Tensor:
            total = gradient.clone()
            torch.distributed.all_reduce(total, group=ctx.group)
            return total, None

    def synced(self: SyncBatchNorm, x: Tensor) -> Tensor:
        group = self.process_group or torch.distributed.group.WORLD
        axes = [axis for axis in range(x.dim()) if axis != 1]
        size = x.new_tensor([x.numel() / x.size(1)], dtype=torch.float32)
        packed = Sum.apply(torch.cat([x.float().sum(axes), x.float().pow(2).sum(axes), size]), group)
        sums, squares, count = packed.split([x.size(1), x.size(1), 1])
        mean = sums / count
        variance = (squares / count - mean.pow(2)).clamp(min=0)
        _running(torch, self, mean, variance, count)
        shape = [1, -1] + [1] * (x.dim() - 2)
        normal = (x - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(x.dtype)

    def forward(original: Original) -> Original:
        def normalised(self: SyncBatchNorm, x: Tensor) -> Tensor:
            grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
            if not grouped or not (self.training or not self.track_running_stats):
                training = self.training or not self.track_running_stats
                return torch.nn.functional.batch_norm(
                    x, self.running_mean, self.running_var, self.weight, self.bias, training, self.momentum or 0.0,
                    self.eps,
                )  # fmt: skip
            session.note("SyncBatchNorm is computed on the CPU")
            return synced(self, x)

        return normalised

    patch(torch.nn.SyncBatchNorm, "forward", forward)


def _running(torch: ModuleType, module: Module, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    if not (module.training and module.track_running_stats):
        return
    with torch.no_grad():
        module.num_batches_tracked.add_(1)
        momentum = module.momentum
        if momentum is None:
            momentum = 1.0 / float(module.num_batches_tracked)
        unbiased = variance * count / (count - 1).clamp(min=1)
        module.running_mean.lerp_(mean.to(module.running_mean.dtype), momentum)
        module.running_var.lerp_(unbiased.to(module.running_var.dtype), momentum)
