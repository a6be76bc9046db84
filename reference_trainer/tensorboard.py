"""The numbers of rank zero's log as TensorBoard scalars, under RUN/tensorboard; off by default (`log.tensorboard`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from .config import ConfigError

__all__ = ["Scalars", "require_tensorboard"]


def require_tensorboard() -> None:
    """Raises ``ConfigError`` where TensorBoard is not installed. Local; every rank, so that all refuse alike."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("log.tensorboard needs the package: pip install 'validate-ddp[tensorboard]', or leave it out")


class Scalars:
    """Writes scalars as `data/metric`, such as "training/loss". Rank zero only.

    step: where the run begins; what an earlier start has written after that does not count any more.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None, flush_secs=10)

    def write(self, data: str, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics after this many optimizer steps."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"{data}/{name}", value, step)

    def close(self) -> None:
        """Everything is on its way to the disk when this returns."""
        self._writer.close()
