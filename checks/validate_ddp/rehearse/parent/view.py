"""What is shown of a run while it goes on; here the plain form: a line for each remark."""

from __future__ import annotations

import sys
from typing import Protocol

from validate_ddp.rehearse.log import Event


class View(Protocol):
    """Follows a run. ``output`` gives a file descriptor for what a rank prints, None to let it have ours."""

    def began(self, events: list[Event]) -> None:
        """Called once processes are about to start, with the log that grows from now on; again after a new start."""

    def event(self, rank: int, event: Event) -> None:
        """An event of a rank."""

    def ended(self, rank: int | None, code: int) -> None:
        """A process has ended."""

    def note(self, text: str) -> None:
        """A remark of one line."""

    def output(self, rank: int | None) -> int | None:
        """A descriptor that a rank's process is given for standard output and error; the caller closes it."""

    def readable(self) -> list[int]:
        """Descriptors to wait for besides the ranks' events."""

    def read(self, descriptor: int) -> bool:
        """Takes what has come at one of them; False when it is at its end."""

    def tick(self) -> None:
        """Called several times a second."""


class Plain:
    """Remarks on standard error; the ranks print where the command does."""

    def began(self, events: list[Event]) -> None:
        return

    def event(self, rank: int, event: Event) -> None:
        return

    def ended(self, rank: int | None, code: int) -> None:
        return

    def note(self, text: str) -> None:
        print(f"validate-ddp: {text}", file=sys.stderr, flush=True)

    def output(self, rank: int | None) -> int | None:
        return None

    def readable(self) -> list[int]:
        return []

    def read(self, descriptor: int) -> bool:
        return False

    def tick(self) -> None:
        return
