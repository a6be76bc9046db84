"""The live view of a run on a terminal: what each rank does, the findings so far, and above them what is printed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from validate_ddp.record.pace import Pace
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.outcome import judge
from validate_ddp.rehearse.screens import Screens
from validate_ddp.report.printable import escape

_PERIOD = 0.2
"""Seconds between two drawings."""
_SHARE = 25
"""Findings are looked for again after so many times the time that it took: it stays a small share of the run."""
_LOOK = 2.0
"""Seconds for which that may hold up everything else."""
_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}


@dataclass
class _Row:
    """One rank. calls: those under way, as (number, words, since when)."""

    steps: int = 0
    batches: int = 0
    epoch: int | None = None
    calls: list[tuple[int, str, float]] = field(default_factory=list)
    last: str = ""
    ended: str = ""


class LiveView:
    """A ``View``. Used as a context: the table goes away at its end, what the ranks have printed stays.

    color: whether to use colour. read: findings of the static check, one line each.
    """

    def __init__(self, color: bool, read: list[str]) -> None:
        self.console = Console(no_color=not color, highlight=False)
        self.screens = Screens(max(self.console.width - 9, 20), self._printed)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.read_before = read
        self.began_at = time.monotonic()
        self.drawn = 0.0
        self.looked = 0.0
        self.wait = 2.0
        self.rows: dict[int, _Row] = {}
        self.events: list[protocol.Event] = []
        self.found: list[tuple[str, str]] = []

    def __enter__(self) -> LiveView:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.screens.close()
        self.live.stop()

    def began(self, events: list[protocol.Event]) -> None:
        self.events = events
        self.rows.clear()

    def event(self, rank: int, event: protocol.Event) -> None:
        row = self.rows.setdefault(rank, _Row())
        match event:
            case protocol.Call():
                own = event.site.own
                place = f"{own.path.rpartition('/')[2]}:{own.line}" if event.site.frames else "?"
                words = f"{_named(event)} at {place}"
                row.calls.append((event.n, words, time.monotonic()))
                row.last = words
            case protocol.Done():
                row.calls = [call for call in row.calls if call[0] != event.n]
            case protocol.Step():
                row.steps = max(row.steps, event.count)
            case protocol.Batch():
                row.batches, row.epoch = event.count + 1, event.turn
            case protocol.UncaughtException():
                row.ended = f"{event.kind}: {event.message}".splitlines()[0]

    def ended(self, rank: int | None, code: int) -> None:
        row = self.rows.get(rank if rank is not None else -1)
        if row is not None and not row.ended:
            row.ended = f"exited with code {code}"

    def note(self, text: str) -> None:
        self.console.print(Text(f"validate-ddp: {escape(text)}"))

    def output(self, rank: int | None) -> int | None:
        return self.screens.open(rank)

    def readable(self) -> list[int]:
        return list(self.screens.screens)

    def read(self, descriptor: int) -> bool:
        return self.screens.read(descriptor)

    def _printed(self, rank: int | None, line: str) -> None:
        # What the script colours stays so; anything else that moves the cursor would break the table.
        text = Text.from_ansi(line)
        text = text if text.plain.isprintable() else Text(escape(text.plain.expandtabs(8)))
        head = f"[rank {rank}] " if rank is not None else ""
        self.console.print(Text(head, style="dim") + text, soft_wrap=True)

    def tick(self) -> None:
        now = time.monotonic()
        if now - self.drawn < _PERIOD:
            return
        self.drawn = now
        if now - self.looked > self.wait and self.rows:
            self._look()
            self.looked = time.monotonic()
            self.wait = max(2.0, _SHARE * (self.looked - now))
        self.live.update(self.drawing(now), refresh=True)

    def _look(self) -> None:
        judged = judge(list(self.events), pace=Pace(_LOOK))
        self.found = [
            (each.finding.severity, f"{each.finding.code} {each.finding.name} {each.finding.path}:{each.finding.line}")
            for each in judged.reported
            if "rehearsal" in each.kinds
        ]

    def drawing(self, now: float) -> RenderableType:
        """The table, and the findings under it."""
        table = Table(box=None, pad_edge=False, expand=True, header_style="dim")
        for name in ("rank", "epoch", "batch", "steps"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("now", ratio=1, no_wrap=True, overflow="ellipsis")
        for rank, row in sorted(self.rows.items()):
            epoch = "-" if row.epoch is None else str(row.epoch)
            table.add_row(str(rank), epoch, str(row.batches or "-"), str(row.steps), self._doing(rank, row, now))
        lines: list[RenderableType] = [Text(f"rehearsal, {now - self.began_at:.0f} s", style="bold"), table]
        if not self.rows:
            lines[1] = Text("the ranks start", style="dim")
        if self.read_before:
            shown = ", ".join(self.read_before[:3]) + (", ..." if len(self.read_before) > 3 else "")
            lines.append(Text(f"read before: {shown}", style="dim", no_wrap=True, overflow="ellipsis"))
        for severity, text in self.found[:5]:
            line = Text(severity, style=_STYLES[severity], no_wrap=True, overflow="ellipsis")
            lines.append(line.append(f" {escape(text)}", style="default"))
        if len(self.found) > 5:
            lines.append(Text(f"and {len(self.found) - 5} more"))
        return Group(*lines)

    def _doing(self, rank: int, row: _Row, now: float) -> Text:
        if row.ended:
            return Text(escape(row.ended))
        if row.calls:
            _, words, since = row.calls[-1]
            waited = f"{now - since:.0f} s in " if now - since >= 1 else "in "
            return Text(waited + escape(words), style="yellow" if now - since >= 5 else "")
        printing = self.screens.current(rank)
        last = f"after {row.last}" if row.last else "runs"
        return Text(escape(Text.from_ansi(printing).plain) if printing.strip() else escape(last), style="dim")


def _named(call: protocol.Call) -> str:
    match call:
        case protocol.Collective():
            return call.op
        case protocol.Forward():
            return "forward of DDP"
        case protocol.Backward():
            return "backward"
        case _:
            return "init_process_group"
