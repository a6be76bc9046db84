"""DDP111: a number as time-out."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script, keyword
from ci.mutants.sites import started_on_gpus, starts


def plant(script: Script) -> Iterator[Mutant]:
    """Puts seconds where a timedelta stands, or adds ``timeout=1800`` where none is given."""
    for file, call in script.calls("datetime.timedelta"):
        expected = (file.place(file.statement(call)), *starts(script))
        yield Mutant("DDP111", "seconds for a timedelta", (file.replace(call, "1800"),), expected)
    for file, call in started_on_gpus(script):
        if keyword(call, "timeout") is None:
            place = (file.place(file.statement(call)),)
            yield Mutant("DDP111", "timeout=1800", (file.with_argument(call, "timeout=1800"),), place)
