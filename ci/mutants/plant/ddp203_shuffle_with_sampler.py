"""DDP203: ``shuffle=True`` beside a sampler."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script, keyword


def plant(script: Script) -> Iterator[Mutant]:
    """Adds it to each loader with a sampler."""
    for file, call in script.calls("DataLoader"):
        if keyword(call, "sampler") is not None:
            edit = file.without_argument(call, "shuffle", "True") or file.with_argument(call, "shuffle=True")
            yield Mutant("DDP203", "shuffle=True beside sampler=", (edit,), (file.place(file.statement(call)),))
