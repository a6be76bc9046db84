"""The exception that ends a rank, before it is printed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import sys
import traceback
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Original, guarded, patch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ..session import Session

    Told = Callable[[type[BaseException], BaseException, TracebackType | None], None]

_VALUES = 64
"""Variables, and attributes of each, among which the dictionary is looked for that lacks a key."""


def install(session: Session) -> None:
    """Local. Event ``exception``; then the hook that was there goes on."""
    former = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        frames: list[protocol.Frame] = []
        step = trace
        while step is not None:
            frame = step.tb_frame
            if session.sites.kind(frame.f_code.co_filename) != 2:
                entry: protocol.Frame = session.sites.entry(frame)
                frames.insert(0, entry._replace(line=step.tb_lineno or entry.line))
            step = step.tb_next
        text = "".join(_without_ours(row) for row in traceback.format_exception(kind, error, trace))
        missing, present = guarded(session.fault, "failures", _other_name, error, trace) or (None, None)
        session.emit(
            protocol.UncaughtException(
                kind=kind.__name__, message=str(error)[:2000], stack=tuple(frames[:8]), traceback=text[-8000:],
                missing=missing, present=present,
            )
        )  # fmt: skip

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        guarded(session.fault, "failures", told, kind, error, trace)
        former(kind, error, trace)

    sys.excepthook = hook
    _in_processes(session, told)


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _without_ours(row: str) -> str:
    """One entry of a traceback; nothing for a stub of ours, which says nothing of the script."""
    return "" if row.startswith(f'  File "{_OURS}') else row


def _other_name(error: BaseException, trace: TracebackType | None) -> tuple[str, str] | None:
    """Of a KeyError: the key that is missing, and one that is there and differs by ``module.`` in front only."""
    if not isinstance(error, KeyError) or len(error.args) != 1 or not isinstance(error.args[0], str):
        return None
    missing = error.args[0]
    other = missing[len("module.") :] if missing.startswith("module.") else "module." + missing
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    values = list(trace.tb_frame.f_locals.values()) if trace is not None else []
    values += [inner for value in values[:_VALUES] for inner in list(getattr(value, "__dict__", {}).values())[:_VALUES]]
    for value in values:
        if isinstance(value, dict) and other in value and missing not in value:
            return missing, other
    return None


def _in_processes(
    session: Session, told: Callable[[type[BaseException], BaseException, TracebackType | None], None]
) -> None:
    """In ranks that the script starts by itself an exception never comes to the hook: multiprocessing catches it."""

    def reporting(function: Original) -> Original:
        def call(*args: object, **kwargs: object) -> object:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                guarded(session.fault, "failures", told, type(error), error, error.__traceback__)
                raise

        return call

    def wrapped(original: Original) -> Original:
        def _wrap(function: Original, index: int, args: object, error_file: object) -> object:
            return original(reporting(function), index, args, error_file)

        return _wrap

    patch(multiprocessing.process.BaseProcess, "run", reporting)
    patch(sys.modules["torch.multiprocessing.spawn"], "_wrap", wrapped)
