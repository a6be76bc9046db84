"""DDP502: every rank writes the file."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script
from ci.mutants.sites import rank_guards, without_rank, writes


def plant(script: Script) -> Iterator[Mutant]:
    """Takes the rank out of each guard around a write."""
    for file, guard in rank_guards(script):
        written = writes(script, file, guard)
        rest = without_rank(file, guard.test)
        if written and rest is not None:
            edit = file.replace(guard.test, rest) if rest else file.free(guard)
            yield Mutant("DDP502", "no guard", (edit,), (file.place(guard), *written))
