"""How long the analysis of a run may take, and that people hear of it when it takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SILENT, _SILENT_ON_TERMINAL = 5.0, 0.5
"""Seconds of analysis without a word."""
_PERIOD = 0.2


class OutOfTime(Exception):
    """The analysis has taken as long as it may."""


class Pace:
    """Is looked at all the time by what may take long. Local.

    seconds: from now until ``OutOfTime`` is raised. tell: called with the rules that are done and all of them, after
    ``patience`` seconds, and several times a second then.
    """

    def __init__(
        self,
        seconds: float,
        tell: Callable[[int, int], None] | None = None,
        patience: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        now = clock()
        self.seconds = seconds
        self.done, self.total = 0, 1
        self._tell = tell
        self._clock = clock
        self._end, self._next = now + seconds, now + patience

    def look(self) -> None:
        """Raises ``OutOfTime`` where the time is up."""
        now = self._clock()
        if now > self._end:
            raise OutOfTime
        if self._tell is not None and now >= self._next:
            self._next = now + _PERIOD
            self._tell(self.done, self.total)


@contextmanager
def shown(seconds: float, events: int, terminal: bool) -> Iterator[Pace]:
    """A pace that is told of on standard error where it takes long: by a bar on a terminal, one line elsewhere."""
    if not terminal:
        told = [f"validate-ddp: judging {events:,} events: for at most {seconds:g} s (--timeout)"]
        yield Pace(seconds, lambda *_: print(told.pop(), file=sys.stderr, flush=True) if told else None, _SILENT)
        return
    from validate_ddp.progress import Bar

    bars: list[Bar] = []

    def show(done: int, total: int) -> None:
        if not bars:
            bars.append(Bar(total, "judging", "rules"))
        bars[0].show(done)

    try:
        yield Pace(seconds, show, _SILENT_ON_TERMINAL)
    finally:
        for bar in bars:
            bar.stop()
