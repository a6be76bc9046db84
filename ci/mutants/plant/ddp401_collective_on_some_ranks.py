"""DDP401: a collective on rank zero alone."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant, Place
from ci.mutants.script import Script
from ci.mutants.sites import COLLECTIVES, guarded_by_rank, rank_guards, rank_zero, statement_calls, writes


def plant(script: Script) -> Iterator[Mutant]:
    """Guards each collective that is a statement; puts a barrier under each guard around a write."""
    for file, call, line in statement_calls(script, *COLLECTIVES):
        condition = rank_zero(file)
        if condition is None or guarded_by_rank(file, call) or "backward" in _function_name(file.function(call)):
            continue
        edit = file.under(line, f"if {condition}:")
        yield Mutant(
            "DDP401", f"{file.code(call.func)} on rank zero", (edit,), (Place(edit.path, edit.start, edit.end),)
        )
    for file, guard in rank_guards(script):
        if "import torch.distributed as dist" in file.text and writes(script, file, guard):
            assert isinstance(guard.body, cst.IndentedBlock)
            added = file.before(guard.body.body[0], "dist.barrier()")
            place = (Place(added.path, added.start, added.end), file.place(guard))
            yield Mutant("DDP401", "a barrier under the guard of a write", (added,), place)


def _function_name(function: cst.FunctionDef | None) -> str:
    return function.name.value if function is not None else ""
