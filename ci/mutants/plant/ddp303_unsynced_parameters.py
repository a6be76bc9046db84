"""DDP303: the optimizer trains parameters that the wrapper does not know."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Mutant, Place
from ci.mutants.script import File, Script
from ci.mutants.sites import assigned_name, training_forwards, wraps


def plant(script: Script) -> Iterator[Mutant]:
    """A layer replaced after wrapping, or a module of its own beside the wrapped one."""
    for file, wrap in wraps(script):
        name = assigned_name(file, wrap)
        for holder, optimizer in script.find(cst.Call):
            made = holder.qualified(optimizer.func)
            if holder is not file or not made.startswith("torch.optim.") or "lr_scheduler" in made or name is None:
                continue
            if file.function(optimizer) is file.function(wrap) and file.span(optimizer) > file.span(wrap):
                yield from _replaced_layer(script, file, wrap, optimizer, name)
                yield from _module_beside(script, file, wrap, optimizer, name)


def _replaced_layer(script: Script, file: File, wrap: cst.Call, optimizer: cst.Call, name: str) -> Iterator[Mutant]:
    if f"{name}.parameters()" not in file.code(optimizer):
        return
    for _, layer in script.find(cst.Assign):
        target = layer.targets[0].target
        if not isinstance(target, cst.Attribute) or not isinstance(layer.value, cst.Call):
            continue
        if file.code(layer.value.func) != "nn.Linear" or file.code(target.value) != "self":
            continue
        owner = f"{name}.module.{target.attr.value}"
        text = f"{owner} = torch.nn.Linear({owner}.in_features, {owner}.out_features).to({owner}.weight.device)"
        added = file.after(file.statement(wrap), text)
        expected = (Place(added.path, added.start, added.end), file.place(file.statement(optimizer)))
        yield Mutant("DDP303", f"{target.attr.value} made after wrapping", (added,), expected)
        return


def _module_beside(script: Script, file: File, wrap: cst.Call, optimizer: cst.Call, name: str) -> Iterator[Mutant]:
    if not optimizer.args or file.code(optimizer.args[0].value) != f"{name}.parameters()":
        return
    for holder, forward in training_forwards(script):
        assign = holder.enclosing(forward, cst.Assign)
        if holder is not file or file.function(forward) is not file.function(wrap) or assign is None:
            continue
        output = assign.targets[0].target
        if assign.value is not forward or not isinstance(output, cst.Name):
            continue
        edits = (
            file.after(file.statement(wrap), f"gate = torch.nn.PReLU().to(next({name}.parameters()).device)"),
            file.replace(optimizer.args[0].value, f"[*{name}.parameters(), *gate.parameters()]"),
            file.after(file.statement(forward), f"{output.value} = gate({output.value})"),
        )
        expected = [Place(edit.path, edit.start, edit.end) for edit in edits]
        expected.append(file.place(file.statement(optimizer)))
        yield Mutant("DDP303", "a module beside the wrapped one", edits, tuple(expected))
