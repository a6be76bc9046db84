"""DDP504: every rank loads onto the device that saved."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script
from ci.mutants.sites import guarded_by_rank


def plant(script: Script) -> Iterator[Mutant]:
    """Drops ``map_location``."""
    for file, call in script.calls("torch.load"):
        edit = file.without_argument(call, "map_location")
        if edit is not None and not guarded_by_rank(file, call):
            yield Mutant("DDP504", "no map_location", (edit,), (file.place(file.statement(call)),))
