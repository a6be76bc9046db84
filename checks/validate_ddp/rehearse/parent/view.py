"""What is shown of a run while it goes on; here the plain form: a line for each remark."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol import Event
from validate_ddp.report.printable import escape


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
        print(f"validate-ddp: {escape(text)}", file=sys.stderr, flush=True)

    def output(self, rank: int | None) -> int | None:
        return None

    def readable(self) -> list[int]:
        return []

    def read(self, descriptor: int) -> bool:
        return False

    def tick(self) -> None:
        return


Given = ParamSpec("Given")
Result = TypeVar("Result")


class Guarded:
    """Another view, whose faults never change the run: after the first one, remarks are plain, and what ranks print is
    passed on as it comes.

    fault: told of it once.
    """

    def __init__(self, view: View, fault: Callable[[Exception], None]) -> None:
        self.view = view
        self.fault = fault
        self.broken = False
        self.descriptors: list[int] = []

    def _call(self, method: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result | None:
        if not self.broken:
            try:
                return method(*given, **named)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
                self.broken = True
                self.fault(error)
        return None

    def began(self, events: list[Event]) -> None:
        self._call(self.view.began, events)

    def event(self, rank: int, event: Event) -> None:
        self._call(self.view.event, rank, event)

    def ended(self, rank: int | None, code: int) -> None:
        self._call(self.view.ended, rank, code)

    def note(self, text: str) -> None:
        self._call(self.view.note, text)
        if self.broken:
            Plain().note(text)

    def output(self, rank: int | None) -> int | None:
        return self._call(self.view.output, rank)

    def readable(self) -> list[int]:
        self.descriptors = self._call(self.view.readable) or []
        return self.descriptors

    def finish(self) -> None:
        """After the ranks have gone: what they have printed last, where the other view no longer takes it."""
        if self.broken:
            for descriptor in self.descriptors:
                while select.select([descriptor], [], [], 0)[0] and self.read(descriptor):
                    pass
                os.close(descriptor)

    def read(self, descriptor: int) -> bool:
        goes_on = self._call(self.view.read, descriptor)
        if not self.broken:
            if not goes_on:
                self.descriptors.remove(descriptor)  # closed by the other view
            return bool(goes_on)
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:  # its rank has gone
            return False
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return bool(data)

    def tick(self) -> None:
        self._call(self.view.tick)
