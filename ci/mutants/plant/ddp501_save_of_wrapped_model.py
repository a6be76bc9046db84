"""DDP501: the wrapper's state is saved."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Edit, Mutant
from ci.mutants.script import File, Script
from ci.mutants.sites import assigned_name, flow_of, wraps


def plant(script: Script) -> Iterator[Mutant]:
    """Drops what unwraps: ``.module``, a function that does it, or the name from before wrapping."""
    saves = [file.place(file.statement(call)) for file, call in script.calls("torch.save")]
    for file, call in script.calls(".state_dict"):
        assert isinstance(call.func, cst.Attribute)
        owner = call.func.value
        place = (file.place(file.statement(call)), *saves)
        if isinstance(owner, cst.Attribute) and owner.attr.value == "module":
            edit = file.replace(owner, file.code(owner.value))
            yield Mutant("DDP501", "no .module", (edit,), place)
        elif isinstance(owner, cst.Call) and "unwrap" in file.code(owner.func):
            yield Mutant("DDP501", "not unwrapped", (file.replace(owner, file.code(owner.args[0].value)),), place)
        elif isinstance(owner, cst.Name):
            for edit in _earlier_name(script, file, owner):
                yield Mutant("DDP501", f"the wrapper for {owner.value}", (edit,), place)
    for file, call in script.calls(".unwrap_model"):
        states = [f.place(f.statement(c)) for f, c in script.calls(".state_dict")]
        edit = file.replace(call, file.code(call.args[0].value))
        yield Mutant("DDP501", "not unwrapped", (edit,), (file.place(file.statement(call)), *states, *saves))


def _earlier_name(script: Script, file: File, owner: cst.Name) -> Iterator[Edit]:
    """The wrapper's name where the model's own was saved, or was given to the function that saves."""
    for holder, wrap in wraps(script):
        inner, outer = holder.code(wrap.args[0].value), assigned_name(holder, wrap)
        if outer is None or inner == outer:
            continue
        if holder is file and file.function(owner) is file.function(wrap) and inner == owner.value:
            yield file.replace(owner, outer)
        for call in holder.inside(holder.function(wrap) or wrap, cst.Call):
            callee = flow_of(script).callee(holder, call)
            if callee is None or callee[1] is not file.function(owner) or holder.span(call) < holder.span(wrap):
                continue
            for argument in call.args:
                if holder.code(argument.value) == inner:
                    yield holder.replace(argument.value, outer)
