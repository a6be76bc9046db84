"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

__all__ = ["save"]


def save(state: dict[str, Any], path: Path) -> None:
    """Writes ``state`` to ``path`` at once: a reader, or a crash, finds the old file or the new one. Rank zero only.

    Modules are given unwrapped, so keys carry no "module.".
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    # The new name is durable when its folder is.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
