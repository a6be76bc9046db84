"""DDP506: rank zero alone asks for a state that all ranks must gather."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant, Place
from ci.mutants.script import File, Script
from ci.mutants.sites import flow_of, rank_zero


def plant(script: Script) -> Iterator[Mutant]:
    """Guards FSDP's ``state_dict``, the block around it, the call of the function with it, and ``save_state``."""
    for file, call in script.calls(".save_state"):
        yield from _guarded(file, file.statement(call))
    for file, call in script.calls(".state_dict", "get_model_state_dict"):
        block = file.enclosing(call, cst.With)
        if block is not None and "state_dict_type" in file.code(block):
            yield from _guarded(file, block)
        elif "get_model" not in file.code(call.func):
            continue
        yield from _guarded(file, file.statement(call))
        for holder, use in script.find(cst.Call):
            callee = flow_of(script).callee(holder, use)
            if callee is not None and callee[1] is file.function(call):
                yield from _guarded(holder, holder.statement(use), file.place(file.statement(call)))


def _guarded(file: File, statement: cst.CSTNode, *places: Place) -> Iterator[Mutant]:
    condition = rank_zero(file)
    if condition is not None:
        edit = file.under(statement, f"if {condition}:")
        expected = (Place(edit.path, edit.start, edit.end), *places)
        yield Mutant("DDP506", "on rank zero", (edit,), expected)
