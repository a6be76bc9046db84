"""DDP404: some ranks leave a loop in which the others go on to collectives."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant, Place
from ci.mutants.script import Script
from ci.mutants.sites import rank_guards, statement_calls


def plant(script: Script) -> Iterator[Mutant]:
    """Rank zero stops when a file says so; a rank skips a batch whose loss is not finite."""
    for file, guard in rank_guards(script):
        loop = file.parent(file.parent(guard) or guard)
        assert isinstance(guard.body, cst.IndentedBlock)
        if isinstance(loop, cst.For) and "import os" in file.text:
            added = file.after(guard.body.body[-1], 'if os.path.exists("stop"):\n    break')
            yield Mutant("DDP404", "rank zero breaks", (added,), (Place(added.path, added.start, added.end),))
    if script.mentions("all_gather"):
        return  # a loss over what all ranks gathered is finite on all of them or on none
    for file, call, line in statement_calls(script, ".backward"):
        assert isinstance(call.func, cst.Attribute)
        loss = call.args[0].value if call.args else call.func.value
        loop = file.parent(file.parent(line) or line)
        if isinstance(loop, cst.For) and isinstance(loss, cst.Name):
            added = file.before(line, f"if not torch.isfinite({loss.value}):\n    continue")
            place = Place(added.path, added.start, added.end)
            yield Mutant("DDP404", "a rank skips a batch", (added,), (place,))
