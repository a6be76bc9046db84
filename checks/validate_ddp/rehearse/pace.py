"""How long the analysis of a run may take, and that people hear of it when it takes long."""

from __future__ import annotations

import time
from collections.abc import Callable


class OutOfTime(Exception):
    """The analysis has taken as long as it may."""


class Pace:
    """Is looked at all the time by what may take long. Local.

    seconds: until ``OutOfTime`` is raised; counted from the start. tell: called with a share from 0 to 1, after
    ``patience`` seconds and then every ``period``.
    """

    def __init__(
        self,
        seconds: float,
        tell: Callable[[float], None] | None = None,
        patience: float = 2.0,
        period: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.end = clock() + seconds
        self.tell = tell
        self.period = period
        self.next = clock() + patience
        self.share = 0.0

    def look(self) -> None:
        """Raises ``OutOfTime`` where the time is up."""
        now = self.clock()
        if now > self.end:
            raise OutOfTime
        if now > self.next and self.tell is not None:
            self.next = now + self.period
            self.tell(self.share)
