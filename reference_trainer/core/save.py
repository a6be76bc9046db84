"""Files that are whole or not there, also after a crash of the machine; pickles that can hold data only.

A file is on the disk when it is fsynced, and its name is when its folder is.
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import ConfigError


class CheckpointError(ConfigError):
    """A checkpoint or run directory that cannot be used; the message is one line: what, where, what to do."""


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's names, are on the disk. Local."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_pickle(state: dict[str, Any], path: Path) -> None:
    """``torch.save``, not yet synced. ``OSError`` where the file system refuses. Local."""
    with open(path, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # On a full disk torch complains about its own counting; the cause is the error before that.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def save(state: dict[str, Any], path: Path) -> None:
    """Writes ``state`` to ``path`` at once: a reader, or a crash, finds the old file or the new one. Rank zero only.

    Modules are given unwrapped, so keys carry no "module.". ``OSError`` where the file system refuses; then the old
    file is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, lambda beside: write_pickle(state, beside))


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """As ``save``, for what ``write`` writes to the path that it gets."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        sync(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync(path.parent)


def load(path: Path) -> Any:
    """What ``save`` wrote, on the CPU. Local.

    ``CheckpointError`` where it cannot be read, or where it is a pickle that names code: loading that would run it.
    """
    try:
        with warnings.catch_warnings():
            # Torch warns of a pickle that it then reads or refuses: the refusal is told in our one line.
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        # Torch's own text advises to load it all the same.
        code = re.search(r"(?:GLOBAL|class) ([\w.]+)", str(error))
        reason = f"it names {code[1]}, and loading a pickle runs what it names" if code else "it is not plain data"
        raise CheckpointError(f"{path} is refused: {reason}") from error
    except (RuntimeError, EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} is damaged: {first}") from error
