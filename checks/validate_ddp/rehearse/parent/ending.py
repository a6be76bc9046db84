"""SIGINT, SIGTERM and SIGHUP to ``validate-ddp run``, at any moment: all that was started ends, one line, code 128 + n.

All of it happens in the handler, which does not return. An exception instead would be lost where Python ignores one
(in a finalizer, a callback of an import), or come between two lines that belong together; and a flag would be seen
late, or never while the analysis runs. What is under way when the signal comes needs no care: processes and folders
are ended by another process (``keeper.py``), which is asked for it here, and which does it too when this one is gone.

Meanwhile the ranks get SIGTERM and a moment's grace. Another signal cuts it short.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Kept(Protocol):
    """What keeps processes, and is asked to end them."""

    def ask(self, patiently: bool) -> None:
        """Asks that all be ended, and does not wait; asked once more: now."""

    def wait(self) -> None:
        """Waits for it."""


keepers: list[Kept] = []
"""Those of this process that keep something now. Here, as the handler may come while any other module is imported."""
_last: list[Callable[[], object]] = []
_ending = False


@contextmanager
def handled() -> Iterator[None]:
    """Has these signals end this process within. A signal that it was started to ignore, as by nohup, it ignores."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in NAMES if hasattr(signal, name)):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def last(call: Callable[[], object]) -> Iterator[None]:
    """``call`` is called before a signal ends this process within: for a terminal, for the end of a file."""
    _last.append(call)
    try:
        yield
    finally:
        _last.remove(call)


def _end(number: int, frame: object) -> None:
    global _ending
    kept = list(keepers)
    again, _ending = _ending, True
    for each in kept:
        each.ask(patiently=not again)
    if again:
        return  # to the handler of the first one, which waits
    for call in reversed(_last):
        try:
            call()
        except Exception:  # noqa: BLE001 - it was interrupted half-way itself; the end is what matters
            continue
    _say(f"validate-ddp: {signal.Signals(number).name}: ends, with all that it has started\n")
    for each in kept:
        try:
            each.wait()
        except Exception:  # noqa: BLE001 - the keeper ends them in any case
            continue
    os._exit(128 + number)


def _say(line: str) -> None:
    """Writes it where it can be written at once: who does not read must not keep this process."""
    try:
        if select.select([], [2], [], 0)[1]:
            os.write(2, line.encode())
    except (OSError, ValueError):
        return
