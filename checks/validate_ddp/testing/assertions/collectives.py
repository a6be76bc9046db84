"""That ranks call the same collectives in the same order: each is compared before it is started, so nothing hangs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ..stacks import where
from .exchange import rank_and_size

__tracebackhide__ = True  # pytest shows the line of the test that called, not ours

PATIENCE = 10.0
"""Seconds for the other ranks to come to their next collective."""
_POINT_TO_POINT = ("send", "recv_", "recv_any_source_")
_count = [0]


@contextmanager
def assert_same_collectives(*, patience: float = PATIENCE) -> Iterator[None]:
    """Collective, as a context: every rank enters and leaves. Within it, ranks call the same collectives in one order.

    Compared are the kind, the shapes and types of tensors, and the place; before the collective begins, through the
    store, so that ranks that differ fail instead of hanging. DDP's own reductions count; sends and receives, and groups
    that some ranks are not in, do not. Raises on every rank: the number of the step, and what each rank called where.
    patience: seconds to wait for a rank that calls none.
    """
    rank, size = rank_and_size()
    if size == 1:
        yield
        return
    _count[0] += 1
    mode = _Compared(f"same_collectives/{_count[0]}", rank, size, patience)
    with mode:
        yield
    mode.compare("leaving", {})


class _Compared(TorchDispatchMode):  # type: ignore[misc]
    """Sees each call of a process group, whoever makes it, as an operator."""

    def __init__(self, prefix: str, rank: int, size: int, patience: float) -> None:
        super().__init__()
        self.prefix, self.rank, self.size = prefix, rank, size
        self.patience = patience
        self.step = 0
        self.store = dist.distributed_c10d._get_default_store()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if operator.namespace == "c10d":
            name = operator._schema.name.partition("::")[2]
            if name not in _POINT_TO_POINT and self.covers_world(args):
                self.compare(name.rstrip("_"), {"tensors": _shapes(args)})
        return operator(*args, **(kwargs or {}))

    def covers_world(self, args: tuple[Any, ...]) -> bool:
        """Whether the group of a call has all ranks: others are not ours to compare."""
        for each in args:
            if isinstance(each, torch.ScriptObject):
                try:
                    return bool(dist.ProcessGroup.unbox(each).size() == self.size)
                except (RuntimeError, TypeError, AttributeError):  # the reduction's kind, or an older torch
                    continue
        return True

    def compare(self, name: str, details: dict[str, Any]) -> None:
        """Tells the others what comes next here, and looks at what comes next there."""
        seen = where(sys._getframe())
        place = f"{seen.path}:{seen.line}"
        mine = json.dumps({"name": name, **details, "place": place})
        keys = [f"{self.prefix}/{self.step}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], mine)
        everyone: list[dict[str, Any] | None] = []
        for key in keys:
            try:
                self.store.wait([key], timedelta(seconds=self.patience))
                everyone.append(json.loads(self.store.get(key)))
            except RuntimeError:  # also DistStoreError: nothing came in time
                everyone.append(None)
        signatures = [None if each is None else (each["name"], each.get("tensors")) for each in everyone]
        self.step += 1
        if any(each != signatures[0] for each in signatures):
            said = "; ".join(f"rank {rank} {_told(each, self.patience)}" for rank, each in enumerate(everyone))
            raise AssertionError(f"collective {self.step} is not the same on every rank: {said}")


def _told(each: dict[str, Any] | None, patience: float) -> str:
    if each is None:
        return f"called none within {patience:g} s"
    if each["name"] == "leaving":
        return "had no more"
    return f"called {each['name']} of {', '.join(each['tensors']) or 'no tensor'} at {each['place']}"


def _shapes(value: Any) -> list[str]:
    if isinstance(value, torch.Tensor):
        return [f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"]
    if isinstance(value, (list, tuple)):
        return [shape for each in value for shape in _shapes(each)]
    return []
