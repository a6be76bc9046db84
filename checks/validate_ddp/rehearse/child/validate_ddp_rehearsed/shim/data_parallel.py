"""``nn.DataParallel`` on the CPU: as where there is no GPU, it calls the module it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..patching import Original, patch

if TYPE_CHECKING:
    from torch.nn import DataParallel, Module

    from ..session import Session


def install(session: Session) -> None:
    """Local."""
    torch = session.torch

    def init(original: Original) -> Original:
        def built(
            self: DataParallel, module: Module, device_ids: object = None, output_device: object = None, dim: int = 0
        ) -> None:
            session.note("nn.DataParallel calls its module once, on the CPU")
            torch.nn.Module.__init__(self)
            self.dim, self.module, self.device_ids, self.output_device = dim, module, [], None

        return built

    patch(torch.nn.DataParallel, "__init__", init)
