"""DDP201: the epoch of a shuffling sampler is never set."""

from __future__ import annotations

from collections.abc import Iterator

from ci.mutants.mutant import Mutant, Place
from ci.mutants.script import Script, keyword
from ci.mutants.sites import statement_calls


def plant(script: Script) -> Iterator[Mutant]:
    """Takes out each ``set_epoch``."""
    for file, _, line in statement_calls(script, ".set_epoch"):
        yield Mutant("DDP201", "no set_epoch", (file.remove(line),), tuple(_samplers(script)))


def _samplers(script: Script) -> Iterator[Place]:
    for file, call in script.calls("DistributedSampler"):
        shuffle = keyword(call, "shuffle")
        if shuffle is None or file.code(shuffle.value) != "False":
            yield file.place(file.statement(call))
