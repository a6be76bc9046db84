"""DDP307: nn.DataParallel."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script
from ci.mutants.sites import wraps


def plant(script: Script) -> Iterator[Mutant]:
    """Puts it in place of DistributedDataParallel."""
    if script.mentions("no_sync"):
        return  # it has none
    for file, wrap in wraps(script):
        edit = file.replace(wrap, f"torch.nn.DataParallel({file.code(wrap.args[0].value)})")
        yield Mutant("DDP307", "nn.DataParallel", (edit,), (file.place(file.statement(wrap)),))
