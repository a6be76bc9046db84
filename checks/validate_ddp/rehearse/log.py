"""The log of a rehearsal: one JSON object a line, in the order in which the command received them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import BinaryIO, TextIO

from validate_ddp.console import UsageError
from validate_ddp.rehearse.events import Event, Keeper

__all__ = ["VERSION", "Event", "Log", "parse", "read"]

VERSION = 1
"""Of the events, as the child's ``channel.VERSION``."""
AGAIN = "the log is damaged; record the run again with --log"
_LONGEST = 64 << 20
"""Bytes of a line: a step of a model takes 40 for each of its parameters."""


class Log:
    """Keeps the events, in memory and, where a path is given, in a file that is written line by line."""

    def __init__(self, path: str | None) -> None:
        self.events: list[Event] = []
        self.late: list[Event] = []
        """Faults to be told after the next event: the first one has to be ``start``."""
        self.file: TextIO | None = None
        self.path = path
        self.keeper = Keeper()
        if path is not None:
            try:
                self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
            except OSError as error:
                raise UsageError(f"{path}: the log cannot be written: {error.strerror or error}") from error

    def add(self, event: Event) -> None:
        """Appends one event. A full disk ends the file, and becomes an event; the run goes on."""
        self.events += [self.keeper.kept(event), *self.late]
        self.late = []
        if self.file is None:
            return
        try:
            self.file.write(json.dumps(event, separators=(",", ":")) + "\n")
        except OSError as error:
            self.file = None
            self.events.append(_fault(self.path, error))

    def tell(self, message: str) -> None:
        """A fault of the command itself, as an event after the next one."""
        self.late.append({"event": "fault", "where": "command", "message": message})

    def restart(self) -> None:
        """Forgets all events: the run begins again."""
        self.events.clear()
        self.keeper = Keeper()
        if self.file is not None:
            try:
                self.file.seek(0)
                self.file.truncate()
            except OSError as error:
                self.file = None
                self.late = [_fault(self.path, error)]

    def close(self) -> None:
        """Closes the file."""
        if self.file is not None:
            try:
                self.file.close()
            except OSError as error:
                self.events.append(_fault(self.path, error))
            self.file = None


def _fault(path: str | None, error: OSError) -> Event:
    return {"event": "fault", "where": "log", "message": f"{path}: {error.strerror or error}"}


def read(path: str) -> list[Event]:
    """The events of a log; an incomplete last line, of a run that was cut off, is left out. Raises UsageError."""
    try:
        with open(path, "rb") as file:
            events = list(parse(_lines(file, path), path))
    except OSError as error:
        raise UsageError(f"{path}: the log cannot be read: {error.strerror or error}") from error
    if not events or events[0].get("event") != "start":
        raise UsageError(f"{path}: is no log of a rehearsal; `validate-ddp run --log FILE train.py` makes one")
    if events[0].get("version") != VERSION:
        raise UsageError(f"{path}: the log is of version {events[0].get('version')!r}, this command reads {VERSION}")
    return events


def _lines(file: BinaryIO, path: str) -> Iterator[bytes]:
    """A file's lines. Raises UsageError for one that no rank can have sent: it is read whole."""
    number = 0
    while line := file.readline(_LONGEST):
        number += 1
        if len(line) == _LONGEST:
            raise UsageError(
                f"{path}:{number}: the line is longer than {_LONGEST >> 20} MiB: is no event of a rehearsal"
            )
        yield line


def parse(lines: Iterable[bytes], path: str) -> Iterator[Event]:
    """The events of a log's lines. Raises UsageError for a line that is none, but for a last one without its end."""
    keeper = Keeper()
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            if not line.endswith(b"\n") and not isinstance(error, RecursionError):
                return  # a whole line ends with a line feed: nothing comes after this one
            why = "nested too deeply" if isinstance(error, RecursionError) else "not JSON"
            raise UsageError(f"{path}:{number}: is no event of a rehearsal ({why}): {AGAIN}") from error
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise UsageError(f"{path}:{number}: is no event of a rehearsal: {AGAIN}")
        yield keeper.kept(event)
