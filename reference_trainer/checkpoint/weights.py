"""Weights as safetensors, and weights that come from elsewhere: other keys, other nesting, other file types."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..core.save import load, sync
from ..lora import is_adapter
from .directory import CheckpointError, latest, told, verified

MODEL, EMA = "model.safetensors", "ema.safetensors"
_NESTED = ("model", "state_dict", "model_state_dict", "module", "ema")
"""Where programs put a model's weights in what they save, in the order of looking."""


def write(tensors: Mapping[str, Any], path: Path) -> None:
    """Writes tensors by name, not yet synced; tied weights once for each name. ``OSError``. Local."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            told = f"{name} of the model's state_dict is a {type(value).__name__}, and weights are tensors"
            raise CheckpointError(f"{told}; keep it in the objective's state_dict")
        on_cpu = value.detach().cpu().contiguous()
        storage = on_cpu.untyped_storage().data_ptr()
        plain[name] = on_cpu.clone() if storage in seen else on_cpu
        seen.add(storage)
    try:
        path.touch()
        mode = path.stat().st_mode
        safetensors.torch.save_file(plain, path, metadata={"format": "pt"})
        path.chmod(mode)  # safetensors' own is for the owner alone
    except SafetensorError as error:
        raise OSError(0, str(error).rpartition("I/O error: ")[2], str(path)) from error


def read(path: Path) -> dict[str, Tensor]:
    """Tensors by name, on the CPU; ``CheckpointError`` where they cannot be read. Local."""
    with told(path):
        content = path.read_bytes()  # a file that is mapped would change under the tensors when it is replaced
    try:
        found: dict[str, Tensor] = safetensors.torch.load(content)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    return found


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes: equal for weights that are equal bit by bit. Local."""
    checksum = hashlib.sha256()
    for name in sorted(tensors):
        on_cpu = tensors[name].detach().cpu().contiguous()
        checksum.update(f"{name} {on_cpu.dtype} {tuple(on_cpu.shape)}\n".encode())
        checksum.update(on_cpu.reshape(-1).view(torch.uint8).numpy())
    return checksum.hexdigest()


def initialise(module: nn.Module, path: Path, *, parts: Sequence[str] = ()) -> None:
    """Gives an unwrapped module the weights of a file, a checkpoint or a run. Local; every rank.

    parts: what the module may be called in a larger one. ``CheckpointError`` names weights that do not fit. LoRA in the
    module stays as it is where the weights are those of a model without it.
    """
    path, expected = find(path), module.state_dict()
    found = foreign(path, expected)
    part = next((each for each in parts if any(name.startswith(f"{each}.") for name in found)), None)
    if part is not None:
        found = {name.removeprefix(f"{part}."): each for name, each in found.items() if name.startswith(f"{part}.")}
    if not any(map(is_adapter, found)):
        expected = {name: each for name, each in expected.items() if not is_adapter(name)}
    problems = {
        "has no": sorted(set(expected) - set(found)),
        "has in addition": sorted(set(found) - set(expected)),
        "has in another shape": [
            f"{name} ({tuple(found[name].shape)}, here {tuple(each.shape)})"
            for name, each in sorted(expected.items())
            if name in found and found[name].shape != each.shape
        ],
    }
    shown = "; it ".join(
        f"{what} {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        for what, names in problems.items()
        if names
    )
    if shown:
        lora = any(map(is_adapter, found)) and not any(map(is_adapter, expected))
        hint = " (it has LoRA; reference-trainer export RUN FILE --lora merged gives weights without)" * lora
        raise CheckpointError(f"{path} does not fit the model: it {shown}{hint}")
    module.load_state_dict({**module.state_dict(), **found})


def find(path: Path) -> Path:
    """The file with the weights that a path means; ``CheckpointError`` where there is none. Local."""
    if path.is_file():
        return path
    folder = latest(path) or path
    if not (folder / MODEL).is_file():
        raise CheckpointError(f"{path} is no file with weights, no checkpoint and no run directory with one")
    verified(folder)
    return folder / MODEL


def foreign(path: Path, expected: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights in a file, under the names that the model uses: wrappers' prefixes are taken off. Local."""
    found: Any = read(path) if path.suffix == ".safetensors" else load(path)
    if isinstance(found, Mapping):
        found = next((found[key] for key in _NESTED if isinstance(found.get(key), Mapping)), found)
    if not (isinstance(found, Mapping) and found and all(isinstance(each, Tensor) for each in found.values())):
        where = ", ".join(_NESTED)
        raise CheckpointError(f"{path} holds no weights: expected tensors by name, directly or under one of {where}")
    # torch.compile puts its prefix before the names of what it compiles, which may be a part of the model.
    if not any("_orig_mod." in name for name in expected):
        found = {name.replace("_orig_mod.", ""): each for name, each in found.items()}
    own = all(name.startswith("module.") for name in expected)
    while not own and all(name.startswith("module.") for name in found):
        found = {name.removeprefix("module."): each for name, each in found.items()}
    return dict(found)


def place(out: Path, fill: Callable[[Path], None]) -> None:
    """Writes a file or a folder that must not be there, by ``fill(path)``: it appears when it is whole. Local."""
    if out.exists():
        raise CheckpointError(f"{out} is there already; give another name, or remove it")
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with told(out, "cannot be written"):
            out.parent.mkdir(parents=True, exist_ok=True)
            fill(beside)
            for path in [*beside.rglob("*"), beside]:
                sync(path)
            os.replace(beside, out)
            sync(out.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True) if beside.is_dir() else beside.unlink(missing_ok=True)
