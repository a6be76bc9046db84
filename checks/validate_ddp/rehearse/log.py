"""The log of a rehearsal: one JSON object a line, in the order in which the command received them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from validate_ddp.cli import UsageError

VERSION = 1
"""Of the events, as the child's ``channel.VERSION``."""
Event = dict[str, Any]


class Log:
    """Keeps the events, in memory and, where a path is given, in a file that is written line by line."""

    def __init__(self, path: str | None) -> None:
        self.events: list[Event] = []
        self.late: list[Event] = []
        """Faults to be told after the next event: the first one has to be ``start``."""
        self.file: TextIO | None = None
        self.path = path
        if path is not None:
            try:
                self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
            except OSError as error:
                raise UsageError(f"{path}: the log cannot be written: {error.strerror or error}") from error

    def add(self, event: Event) -> None:
        """Appends one event. A full disk ends the file, and becomes an event; the run goes on."""
        self.events += [event, *self.late]
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
        with open(path, encoding="utf-8") as file:
            events = list(parse(file, path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: the log cannot be read: {error}") from error
    if not events or events[0].get("event") != "start":
        raise UsageError(f"{path}: is no log of a rehearsal")
    if events[0].get("version") != VERSION:
        raise UsageError(f"{path}: the log is of version {events[0].get('version')}, this command reads {VERSION}")
    return events


def parse(lines: Iterable[str], path: str) -> Iterator[Event]:
    """The events of a log's lines. Raises UsageError for a line in the middle that is none."""
    broken = 0
    for number, line in enumerate(lines, 1):
        if broken:
            raise UsageError(f"{path}:{broken}: is no event of a rehearsal")
        try:
            event = json.loads(line)
        except ValueError:
            broken = number
            continue
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise UsageError(f"{path}:{number}: is no event of a rehearsal")
        yield event
