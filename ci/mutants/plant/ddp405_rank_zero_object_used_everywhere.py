"""DDP405: what only rank zero has is used by all ranks."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant, Place
from ci.mutants.script import File, Script
from ci.mutants.sites import flow_of


def plant(script: Script) -> Iterator[Mutant]:
    """Takes ``if writer is not None`` away; adds a log that only rank zero opens."""
    for file, made in script.find(cst.Assign):
        value, target = made.value, made.targets[0].target
        if isinstance(value, cst.IfExp) and "rank" in file.code(value.test) and file.code(value.orelse) == "None":
            for guard in file.inside(file.function(made) or made, cst.If):
                if file.code(guard.test) == f"{file.code(target)} is not None":
                    yield Mutant("DDP405", "used on all ranks", (file.free(guard),), (file.place(guard),))
    for file, loop in script.find(cst.For):
        ranks = flow_of(script).names_in(file, file.function(loop), "rank")
        if ranks and file.code(loop.target) == "epoch":
            yield from _log(file, loop, ranks[0])


def _log(file: File, loop: cst.For, rank: str) -> Iterator[Mutant]:
    assert isinstance(loop.body, cst.IndentedBlock)
    used = file.after(loop.body.body[-1], 'log.write(f"{epoch}\\n")')
    expected = [Place(used.path, used.start, used.end)]
    for what, text in (
        ("a log that is None elsewhere", f'log = open("log.txt", "w") if {rank} == 0 else None'),
        ("a log that has no name elsewhere", f'if {rank} == 0:\n    log = open("log.txt", "w")'),
    ):
        made = file.before(loop, text)
        yield Mutant("DDP405", what, (made, used), (*expected, Place(made.path, made.start, made.start)))
