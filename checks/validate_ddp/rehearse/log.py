"""The log of a rehearsal: one JSON object a line, in the order in which the command received them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import BinaryIO, TextIO

from validate_ddp.console import UsageError
from validate_ddp.findings import SEVERITIES, Finding, from_plain
from validate_ddp.record.events import Keeper
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol import VERSION
from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol.bounds import integer, is_path, is_text

__all__ = ["VERSION", "Log", "parse", "read"]

AGAIN = "the log is damaged; record the run again with --log"
_LONGEST = 64 << 20
"""Bytes of a line: a step of a model takes 40 for each of its parameters."""


class Log:
    """Keeps the events, in memory and, where a path is given, in a file that is written line by line."""

    def __init__(self, path: str | None) -> None:
        self.events: list[protocol.Event] = []
        self.late: list[protocol.Fault] = []
        """Faults to be told after the next event: the first one has to be ``start``."""
        self.file: TextIO | None = None
        self.path = path
        self.encode = json.JSONEncoder(separators=(",", ":"), default=protocol.as_json).encode
        if path is not None:
            try:
                self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
            except OSError as error:
                raise UsageError(f"{path}: the log cannot be written: {error.strerror or error}") from error

    def add(self, event: protocol.Event) -> None:
        """Appends one event. A full disk ends the file, and becomes an event; the run goes on."""
        self.events += [event, *self.late]
        self.late = []
        if self.file is None:
            return
        try:
            self.file.write(self.encode(event.plain()) + "\n")
        except OSError as error:
            self.file = None
            self.events.append(_fault(self.path, error))

    def tell(self, message: str) -> None:
        """A fault of the command itself, as an event after the next one."""
        self.late.append(protocol.Fault(where="command", message=message))

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


def _fault(path: str | None, error: OSError) -> protocol.Fault:
    return protocol.Fault(where="log", message=f"{path}: {error.strerror or error}")


def read(path: str) -> list[protocol.Event]:
    """The events of a log; an incomplete last line, of a run that was cut off, is left out. Raises UsageError."""
    try:
        with open(path, "rb") as file:
            events = list(parse(_lines(file, path), path))
    except OSError as error:
        raise UsageError(f"{path}: the log cannot be read: {error.strerror or error}") from error
    if not events:
        raise _no_log(path)
    return events


def _no_log(path: str) -> UsageError:
    return UsageError(f"{path}: is no log of a rehearsal; `validate-ddp run --log FILE train.py` makes one")


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


def parse(lines: Iterable[bytes], path: str) -> Iterator[protocol.Event]:
    """The events of a log's lines, each held against what this version writes. Raises UsageError for one that is none,
    but for a last one without its end."""
    keeper = Keeper()
    for number, line in enumerate(lines, 1):
        try:
            held = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            if not line.endswith(b"\n") and not isinstance(error, RecursionError):
                return  # a whole line ends with a line feed: nothing comes after this one
            why = "nested too deeply" if isinstance(error, RecursionError) else "not JSON"
            raise UsageError(f"{path}:{number}: is no event of a rehearsal ({why}): {AGAIN}") from error
        if not isinstance(held, dict) or not isinstance(held.get("event"), str):
            raise UsageError(f"{path}:{number}: is no event of a rehearsal: {AGAIN}")
        if number == 1 and held["event"] != protocol.Start.kind_of:
            raise _no_log(path)
        if number == 1 and held.get("version") != VERSION:
            found = repr(held.get("version"))[:40]
            raise UsageError(f"{path}: the log is of version {found}, this command reads {VERSION}")
        wrong = _wrong(held, number == 1)
        if wrong:
            kind = held["event"][:40]
            raise UsageError(f"{path}:{number}: the event `{kind}` is not as this version writes it: {wrong}: {AGAIN}")
        yield keeper.kept(held)


def _wrong(held: dict[str, object], first: bool) -> str:
    """What a JSON object has that no event of its kind has, in words; "" for nothing."""
    kind = protocol.KINDS.get(str(held["event"]), protocol.Unknown)
    wrong = protocol.wrong(held, kind)
    if wrong or kind is not protocol.Start:
        return wrong
    plan, rows = held.get("plan"), held.get("read")
    if isinstance(rows, list) and not all(map(_is_finding, rows)):
        return "`read` has to be a list of findings or null, and is a list or an object"
    return protocol.wrong(plan, protocol.Plan) if first and isinstance(plan, dict) else ""


def _is_finding(row: object) -> bool:
    try:
        found: Finding = from_plain(Finding, row)
        whole = (found.line, found.column, found.end_line, found.end_column)
        texts = (found.code, found.name, found.message, *(place.note for place in found.evidence))
        spans = [number for place in found.evidence for number in place.span]
        return (
            all(map(integer(), (*whole, *spans)))
            and all(map(is_text, texts))
            and all(map(is_path, (found.path, *(place.path for place in found.evidence))))
            and found.severity in SEVERITIES
            and (found.fix is None or is_text(found.fix.title))
            and (found.cell is None or integer()(found.cell))
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        return False
