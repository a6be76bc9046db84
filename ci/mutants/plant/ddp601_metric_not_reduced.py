"""DDP601: the metric of one rank's part stands for the whole."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ci.mutants.mutant import Edit, Mutant, Place
from ci.mutants.script import File, Script
from ci.mutants.sites import assigned_name, flow_of, in_evaluation


def plant(script: Script) -> Iterator[Mutant]:
    """Takes all reductions out of each function that evaluates."""
    for file, function in script.find(cst.FunctionDef):
        edits = [edit for call in file.inside(function, cst.Call) for edit in _unreduced(script, file, call)]
        if edits:
            expected = [file.place(function), *_uses(script, function)]
            yield Mutant("DDP601", f"{function.name.value} reduces nothing", tuple(edits), tuple(expected))


def _unreduced(script: Script, file: File, call: cst.Call) -> Iterator[Edit]:
    if not in_evaluation(file, call):
        return
    line = file.statement(call)
    if file.is_call_of(call, ".gather_for_metrics"):
        yield file.replace(call, file.code(call.args[0].value))
    elif file.is_call_of(call, "distributed.all_reduce", "fabric.all_reduce", ".all_reduce"):
        yield file.remove(line)
    else:
        callee = flow_of(script).callee(file, call)
        if callee is not None and "dist.all_reduce(" in callee[0].code(callee[1]):
            if not in_evaluation(callee[0], callee[1].body):
                yield file.remove(line)


def _handed_on(script: Script, file: File, node: cst.CSTNode) -> Iterator[Place]:
    """The functions that are given the value: they may report it."""
    for call in file.parents(node):
        callee = flow_of(script).callee(file, call) if isinstance(call, cst.Call) else None
        if callee is not None:
            yield callee[0].place(callee[1])


def _uses(script: Script, function: cst.FunctionDef) -> Iterator[Place]:
    """The calls of the function, and the statements that use what they return."""
    for file, call in script.find(cst.Call):
        callee = flow_of(script).callee(file, call)
        if callee is None or callee[1] is not function:
            continue
        yield file.place(file.statement(call))
        names = set((assigned_name(file, call) or "").split(", "))
        for assign in file.inside(file.function(call) or call, cst.Assign):
            if file.code(assign.value) in names:  # best = accuracy
                names.add(file.code(assign.targets[0].target))
        for node in file.inside(file.function(call) or call, cst.Name):
            if node.value in names:
                statement = file.statement(node)
                yield from _handed_on(script, file, node)
                if isinstance(statement, cst.SimpleStatementLine):
                    yield file.place(statement)
                elif isinstance(statement, cst.If):
                    yield file.place(statement.test)
