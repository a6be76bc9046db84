"""A user's own images and labels in place of the embedded digits: named arrays of one file, checked before use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import ConfigError

__all__ = ["IMAGE_NAMES", "LABEL_NAMES", "read_images"]

IMAGE_NAMES, LABEL_NAMES = ("image", "x"), ("digit", "label", "y")
"""Of the arrays, the first that is there counts."""


def read_images(path: Path, *, side: int, classes: int) -> tuple[Tensor, Tensor]:
    """Images (n, side, side) float32 in [0, 1] and labels (n,) int64 below ``classes``. Local; every rank.

    path: .npz, .safetensors, or .pt with a dict of tensors. Images may be flat, (n, side * side), and bytes 0 to 255.
    ``ConfigError`` says what does not fit.
    """
    arrays = _read(path)
    images, labels = _named(arrays, IMAGE_NAMES, path), _named(arrays, LABEL_NAMES, path)
    if images.dim() < 2 or images[0].numel() != side * side or images.dim() > 4:
        raise ConfigError(
            f"data.path {path}: images are {tuple(images.shape)}; expected (n, {side}, {side}) or (n, {side * side})"
        )
    if labels.shape != images.shape[:1]:
        raise ConfigError(f"data.path {path}: labels are {tuple(labels.shape)}; expected ({len(images)},), as images")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ConfigError(f"data.path {path}: labels are {labels.dtype}; expected whole numbers")
    if labels.min() < 0 or labels.max() >= classes:
        raise ConfigError(
            f"data.path {path}: labels are from {labels.min()} to {labels.max()}; expected 0 to {classes - 1}"
        )
    images = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    least, most = images.aminmax()
    if not (least >= 0 and most <= 1):  # false for NaN
        raise ConfigError(f"data.path {path}: images are from {least:.4g} to {most:.4g}; expected 0 to 1, or bytes")
    return images.reshape(-1, side, side), labels.long()


def _read(path: Path) -> Mapping[str, Any]:
    """The arrays by name, as tensors."""
    if not path.is_file():
        raise ConfigError(f"data.path {path} is no file")
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".safetensors":
        from .checkpoint import weights

        return weights.read(path)
    if path.suffix in (".pt", ".pth"):
        from .checkpoint import durable

        found = durable.load(path)
        if isinstance(found, Mapping):
            return found
        raise ConfigError(f"data.path {path} holds a {type(found).__name__}; expected tensors by name")
    raise ConfigError(f"data.path {path}: its name must end in .npz, .safetensors or .pt")


def _read_npz(path: Path) -> Mapping[str, Any]:
    """Arrays of numpy's; pickled ones, which would run code, are refused."""
    import zipfile

    import numpy

    try:
        with numpy.load(path, allow_pickle=False) as file:
            wanted = [name for name in file.files if name in IMAGE_NAMES + LABEL_NAMES]
            return {name: torch.from_numpy(file[name]) for name in wanted} or dict.fromkeys(file.files)
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"data.path {path} cannot be read: {error}") from error


def _named(arrays: Mapping[str, Any], names: tuple[str, ...], path: Path) -> Tensor:
    found = next((arrays[name] for name in names if isinstance(arrays.get(name), Tensor)), None)
    if found is None:
        there = ", ".join(map(str, arrays)) or "nothing"
        raise ConfigError(f"data.path {path} has no array named {' or '.join(names)}; it has {there}")
    if not found.numel():
        raise ConfigError(f"data.path {path}: {names[0]} is empty")
    return found
