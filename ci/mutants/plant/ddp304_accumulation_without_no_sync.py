"""DDP304: every micro-step reduces gradients."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.accumulation import contexts
from ci.mutants.mutant import Mutant
from ci.mutants.script import Script


def plant(script: Script) -> Iterator[Mutant]:
    """Takes ``no_sync`` away from around the micro-step."""
    for file, block, choice in contexts(script):
        edits = (file.remove(choice), file.free(block))
        loop = file.place(next(iter(file.parents(block)), block))
        yield Mutant("DDP304", "no no_sync", edits, (file.place(block), loop))
