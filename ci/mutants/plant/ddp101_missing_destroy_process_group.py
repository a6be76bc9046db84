"""DDP101: the group is never destroyed, or on rank zero only."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script
from ci.mutants.sites import flow_of, rank_zero, starts, statement_calls


def plant(script: Script) -> Iterator[Mutant]:
    """Takes out the destroy, or the call of the function that does it; or lets only rank zero do it."""
    for file, _, line in statement_calls(script, "distributed.destroy_process_group"):
        yield Mutant("DDP101", "no destroy_process_group", (file.remove(line),), tuple(starts(script)))
        condition = rank_zero(file)
        if condition is not None:
            expected = (*starts(script), file.place(line))
            yield Mutant("DDP101", "rank zero destroys alone", (file.under(line, f"if {condition}:"),), expected)
    for file, call in script.find(cst.Call):
        callee = flow_of(script).callee(file, call)
        if callee is None or callee[1].name.value in ("main", "worker"):
            continue
        if "destroy_process_group()" in callee[0].code(callee[1]):
            edit = file.remove(file.statement(call))
            yield Mutant("DDP101", "its clean-up is not called", (edit,), tuple(starts(script)))
