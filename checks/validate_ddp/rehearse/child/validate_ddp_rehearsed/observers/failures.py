"""The exception that ends a rank, before it is printed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import sys
import traceback
from typing import Any

from ..patching import guarded, patch


def install(session: Any) -> None:
    """Local. Event ``exception``; then the hook that was there goes on."""
    former = sys.excepthook

    def told(kind: Any, error: Any, trace: Any) -> None:
        frames: list[Any] = []
        step = trace
        while step is not None:
            frame = step.tb_frame
            if session.sites.kind(frame.f_code.co_filename) != 2:
                frames.insert(0, [*session.sites.entry(frame)[:1], step.tb_lineno, *session.sites.entry(frame)[2:]])
            step = step.tb_next
        text = "".join(_without_ours(row) for row in traceback.format_exception(kind, error, trace))
        session.emit(
            "exception", kind=kind.__name__, message=str(error)[:2000], stack=frames[:8], traceback=text[-8000:]
        )

    def hook(kind: Any, error: Any, trace: Any) -> None:
        guarded(session.fault, "failures", told, kind, error, trace)
        former(kind, error, trace)

    sys.excepthook = hook
    _in_processes(session, told)


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _without_ours(row: str) -> str:
    """One entry of a traceback; nothing for a stub of ours, which says nothing of the script."""
    return "" if row.startswith(f'  File "{_OURS}') else row


def _in_processes(session: Any, told: Any) -> None:
    """In ranks that the script starts by itself an exception never comes to the hook: multiprocessing catches it."""

    def reporting(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                guarded(session.fault, "failures", told, type(error), error, error.__traceback__)
                raise

        return call

    def wrapped(original: Any) -> Any:
        def _wrap(function: Any, index: int, args: Any, error_file: Any) -> Any:
            return original(reporting(function), index, args, error_file)

        return _wrap

    patch(multiprocessing.process.BaseProcess, "run", reporting)
    patch(sys.modules["torch.multiprocessing.spawn"], "_wrap", wrapped)
