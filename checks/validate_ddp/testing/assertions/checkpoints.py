"""That a checkpoint loads where it was not written: no wrapper left in its keys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

__tracebackhide__ = True  # pytest shows the line of the test that called, not ours

PREFIXES = {
    "module.": "DistributedDataParallel or DataParallel",
    "_orig_mod.": "torch.compile",
    "_fsdp_wrapped_module.": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module.": "activation checkpointing",
}


def assert_unwrapped(checkpoint: Any, *, model: Any = None) -> None:
    """Local: the rank that has the checkpoint. Its keys are those that a single, unwrapped model has.

    checkpoint: a mapping (nested as you like), a module, or the path of a file for ``torch.load``. model: the unwrapped
    model whose ``state_dict`` is the truth; without it, a key with the prefix of a wrapper is wrong. Raises with the
    first key, where it lies, and what it should be called.
    """
    import torch

    if isinstance(checkpoint, (str, os.PathLike)):
        checkpoint = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if isinstance(checkpoint, torch.nn.Module):
        checkpoint = checkpoint.state_dict()
    truth = None if model is None else set(model.state_dict())
    for path, key in _keys(checkpoint):
        wrapper = next((part for part in PREFIXES if f".{key}".find(f".{part}") >= 0), None)
        if wrapper is None or (truth is not None and key in truth):
            continue
        plain = f".{key}".replace(f".{wrapper}", ".").removeprefix(".")
        inside = f" in checkpoint{path}" if path else ""
        raise AssertionError(
            f"key {key!r}{inside} has the prefix {wrapper!r} of {PREFIXES[wrapper]}; a single process has {plain!r}: "
            "save `model.module.state_dict()`"
        )
    if truth is not None and isinstance(checkpoint, Mapping):
        _assert_holds(checkpoint, truth)


def _assert_holds(checkpoint: Mapping[Any, Any], truth: set[str]) -> None:
    """Some mapping in the checkpoint is the model's."""
    candidates = [set(map(str, mapping)) for mapping in _mappings(checkpoint)]
    if any(truth <= keys for keys in candidates):
        return
    best = max(candidates, key=lambda keys: len(truth & keys), default=set())
    missing = sorted(truth - best)
    raise AssertionError(
        f"key {missing[0]!r} of the model is not in the checkpoint ({len(missing)} of {len(truth)} lack)"
    )


def _mappings(value: Any) -> Iterator[Mapping[Any, Any]]:
    if isinstance(value, Mapping):
        yield value
        for item in value.values():
            yield from _mappings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _mappings(item)


def _keys(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str):
                yield path, key
            yield from _keys(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _keys(item, f"{path}[{index}]")
