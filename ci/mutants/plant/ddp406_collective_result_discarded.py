"""DDP406: the result of a reduction is thrown away, or not waited for."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant
from ci.mutants.script import Script, keyword
from ci.mutants.sites import assigned_name


def plant(script: Script) -> Iterator[Mutant]:
    """Drops the assignment of an out-of-place reduction, and the ``wait`` of an asynchronous one.

    Not of Fabric's ``all_reduce``: it returns the tensor that it was given, and has reduced that in place.
    """
    for file, call in script.calls("accelerator.reduce", ".all_reduce", ".reduce"):
        if file.is_call_of(call, "fabric.all_reduce"):
            continue
        name = assigned_name(file, call)
        assign = file.enclosing(call, cst.Assign)
        if assign is None or name is None or assign.value is not call:
            continue
        place = (file.place(file.statement(call)),)
        if keyword(call, "async_op") is not None:
            for holder, wait in script.calls(".wait"):
                if holder is file and file.code(wait.func) == f"{name}.wait":
                    edit = file.remove(file.statement(wait))
                    yield Mutant("DDP406", "no wait", (edit,), place)
        elif call.args and file.code(call.args[0].value) == name:
            yield Mutant("DDP406", "result dropped", (file.replace(assign, file.code(call)),), place)
