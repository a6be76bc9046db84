"""Every setting of a run, with its reason. Torch-free: `plan` and `--help` read it without importing torch.

A field's docstring is its help on the command line. A value that cannot work is refused here, by the field's name.
"""

from __future__ import annotations

from .disentangle import ClubConfig, DisentangleConfig
from .error import ConfigError
from .run import Config
from .training import CheckpointConfig, DataConfig, DistConfig, EmaConfig, LogConfig, OptimConfig

__all__ = [
    "CheckpointConfig",
    "ClubConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "DisentangleConfig",
    "DistConfig",
    "EmaConfig",
    "LogConfig",
    "OptimConfig",
]
