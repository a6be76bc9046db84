"""That one rank alone writes: what each rank opens for writing, renames or removes under a path is gathered."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .exchange import gathered, rank_and_size

__tracebackhide__ = True  # pytest shows the line of the test that called, not ours


@contextmanager
def assert_only_rank_zero_writes(path: str | os.PathLike[str], *, allow_nothing: bool = False) -> Iterator[None]:
    """Collective, as a context: every rank enters and leaves. Within it, only rank zero writes at or below ``path``.

    Seen: files opened for writing, renamed, linked, truncated and removed through Python (any library that does), and
    ``torch.save`` and ``safetensors``, which write natively. Not seen: other native writers, child processes. Raises
    on every rank: the first path and the rank; also if nobody has written anything, unless ``allow_nothing``.
    """
    seen = _Recording(os.path.realpath(path))
    failed = False
    _install_hook()
    _active.append(seen)
    undo = _watch_native(seen)
    try:
        yield
    except BaseException:
        failed = True  # no collective in the wake of an exception: the others may not come
        raise
    finally:
        for each in undo:
            each()
        _active.remove(seen)
        if not failed:
            _judge(seen, allow_nothing)


def _judge(seen: _Recording, allow_nothing: bool) -> None:
    everyone = gathered(seen.events)
    size = rank_and_size()[1]
    for rank, events in enumerate(everyone):
        if rank and events:
            kind, where = events[0]
            raise AssertionError(
                f"rank {rank} {kind} {where!r}; only rank 0 may write below {seen.root!r} "
                f"(rank {rank} wrote {len(events)} times, rank 0 {len(everyone[0])} times)"
            )
    if not everyone[0] and not allow_nothing:
        raise AssertionError(f"none of the {size} ranks wrote anything below {seen.root!r}; a single process would")


@dataclass
class _Recording:
    """What this rank has written below a root."""

    root: str
    events: list[tuple[str, str]] = field(default_factory=list)
    busy: threading.local = field(default_factory=threading.local)

    def note(self, kind: str, path: object) -> None:
        """Notes a write, if it is below the root."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        text = os.fsdecode(path)
        # The folder, not the file: that may be a link which this call replaces.
        real = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(text))), os.path.basename(text))
        if real == self.root or real.startswith(self.root + os.sep):
            self.events.append((kind, real))


_active: list[_Recording] = []
_installed: list[bool] = []
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "os.rename": ("renamed", (0, 1)),
    "os.remove": ("removed", (0,)),
    "os.rmdir": ("removed", (0,)),
    "os.truncate": ("truncated", (0,)),
    "os.link": ("linked", (1,)),
    "os.symlink": ("linked", (1,)),
    "os.mkdir": ("made", (0,)),
}


def _install_hook() -> None:
    # An audit hook cannot be taken away again: one for the process, idle while no recording is active.
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _active:
        return
    if event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITING:
            for seen in list(_active):
                seen.note("opened for writing", path)
    elif event in _EVENTS:
        kind, positions = _EVENTS[event]
        # Every rank may make the folder (exist_ok): that is no write that another could lose.
        if event == "os.mkdir":
            return
        for seen in list(_active):
            for position in positions:
                seen.note(kind, args[position])


def _watch_native(seen: _Recording) -> list[Callable[[], None]]:
    """Wraps what writes without Python's ``open``; returns how to undo it."""
    import torch

    undo: list[Callable[[], None]] = []

    def wrap(owner: Any, name: str, position: int, keyword: str, kind: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            seen.note(kind, args[position] if len(args) > position else kwargs.get(keyword))
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)
        undo.append(lambda: setattr(owner, name, original))

    wrap(torch.serialization, "_open_zipfile_writer", 0, "name_or_buffer", "saved")
    if "safetensors.torch" in sys.modules:
        wrap(sys.modules["safetensors.torch"], "serialize_file", 1, "filename", "saved")
    if "safetensors.numpy" in sys.modules:
        wrap(sys.modules["safetensors.numpy"], "serialize_file", 1, "filename", "saved")
    return undo
