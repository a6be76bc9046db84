"""DDP306: ``zero_grad`` on each micro-step throws away what was accumulated."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant, Place
from ci.mutants.script import Script
from ci.mutants.sites import statement_calls


def plant(script: Script) -> Iterator[Mutant]:
    """Moves it to the start of the micro-step."""
    for file, call, line in statement_calls(script, ".zero_grad"):
        accumulate = [
            block for block in file.parents(line) if isinstance(block, cst.With) and ".accumulate(" in file.code(block)
        ]
        held = file.enclosing(line, cst.If)
        loop = file.enclosing(line, cst.For)
        if accumulate:
            body = accumulate[0].body
        elif held is not None and loop is not None and "accum" in file.code(loop):
            body = loop.body
        else:
            continue
        assert isinstance(body, cst.IndentedBlock)
        moved = file.before(body.body[0], file.code(call))
        expected = (Place(moved.path, moved.start, moved.end),)
        yield Mutant("DDP306", "zero_grad first", (file.remove(line), moved), expected)
