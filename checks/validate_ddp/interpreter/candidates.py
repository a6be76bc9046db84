"""What a name that only a run knows may stand for: ``getattr(module, config.name)``, registries, modules by name.

Each candidate is walked as one of several: what only some of them do hangs on something unknown, and what is found
there is no error. Of a choice that is too wide nothing is known, as of anything out of sight.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from validate_ddp.interpreter import branches, late
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.callables import Choice
from validate_ddp.interpreter.machine import RUNS_ON, Machine, Outcome, Pushed
from validate_ddp.interpreter.objects import contents
from validate_ddp.interpreter.values import (
    UNKNOWN,
    Class,
    Function,
    Instance,
    Lazy,
    ModuleRef,
    Opaque,
    Symbol,
    Value,
    bare,
    join,
)
from validate_ddp.source.syntax import ClassDef, FunctionDef

_MOST = (24, 16, 4)
"""Candidates worth a walk, as a table of data sets; within a walk of one of them, and within two. Not said: a registry
of fifty networks says nothing of any."""
_MOST_MODULES = 40
_MOST_OPENED = 3
"""Modules of which one is meant, and then any name in it."""


def among(machine: Machine, options: list[Any], complete: bool = True) -> Value:
    """One of these functions and classes: those that can matter, nothing where they are none or too many."""
    worth = [option for option in options if _matters(machine, option)]
    if not worth or len(worth) > _MOST[min(machine.counts.choosing, len(_MOST) - 1)]:
        return ()
    if len(options) == 1 and complete:
        return (worth[0],)
    return (Choice(machine.site(), tuple(worth), complete and len(worth) == len(options)),)


def _matters(machine: Machine, option: Any) -> bool:
    return isinstance(option, (Function, Class)) and late.is_notable_code(machine, option)


def of_module(machine: Machine, module: Any) -> Value:
    """``getattr(module, name)``, where only a run knows the name: its own definitions, and what a package imports."""
    machine.library.load(machine, module)
    names = module.scope.names
    wanted = [name for name, value in names.items() if not name.startswith("_") and _is_candidate(module, value)]
    if len(wanted) > _MOST[0] * 10:
        return ()
    return among(machine, [atom for name in wanted for atom in bare(machine.library.forced(machine, names, name))])


def _is_candidate(module: Any, value: Value) -> bool:
    for atom in value:
        if isinstance(atom, Lazy):
            if isinstance(atom.node, (FunctionDef, ClassDef)):
                return True
            return atom.node is None and bool(atom.name) and atom.target is not None and bool(module.is_package)
        return isinstance(atom, (Function, Class)) and (atom.module is module or bool(module.is_package))
    return False


def modules_in(machine: Machine, package: str) -> Value:
    """``import_module(f"package.{name}")``: one of the modules of a package of the program."""
    summaries = machine.library.summaries
    found = machine.library.finder.find(package, 0, machine.frame.module.file)
    folder = os.path.dirname(found) if found is not None and os.path.basename(found) == "__init__.py" else found
    if folder is None or not summaries.is_folder(folder):
        return ()
    files = [os.path.join(folder, name) for name in sorted(summaries.listed(folder)) if name.endswith(".py")]
    files = [file for file in files if os.path.basename(file) != "__init__.py" and summaries.is_file(file)]
    if not files or len(files) > _MOST_MODULES:
        return ()
    modules = tuple(ModuleRef(machine.library.module(file)) for file in files)
    return modules if len(modules) == 1 else (Choice(machine.site(), modules, False),)


def members(machine: Machine, choice: Choice, name: str) -> Value:
    """``choice.name``: that of each candidate which has it."""
    found: list[Any] = []
    for option in choice.options:
        if isinstance(option, ModuleRef):
            if name.encode() not in (machine.library.summaries.data(option.module.file) or b""):
                continue
            held = machine.library.member(machine, option.module, name)
        else:
            held = option.find(name)[0] or () if isinstance(option, Class) else ()
        found += [atom for atom in bare(held) if isinstance(atom, (Function, Class))]
    return among(machine, found, complete=False)


def any_of(machine: Machine, choice: Choice) -> Value:
    """``getattr(choice, name)``, where only a run knows either."""
    result: Value = ()
    for option in choice.options:
        if isinstance(option, ModuleRef) and len(choice.options) <= _MOST_OPENED:
            result = join(result, of_module(machine, option.module))
    return result


def fitting(choice: Choice, call: Call) -> Choice:
    """Those that can be called so: a function that needs more arguments, or takes fewer, is not the one meant."""
    kept = tuple(option for option in choice.options if not isinstance(option, Function) or _takes(option, call))
    return choice if len(kept) == len(choice.options) else Choice(choice.site, kept, choice.all)


def _takes(function: Function, call: Call) -> bool:
    node = function.node
    decorated = isinstance(node, FunctionDef) and bool(node.decorator_list)
    if call.open or function.preset is not None or function.marks or decorated:
        return True
    given, count = node.args, len(call.args) + (function.bound is not None)
    places = given.parameters[: given.positional]
    if count > len(places) and not given.vararg:
        return False
    known = {parameter.name for parameter in given.parameters}
    needed = {parameter.name for parameter in given.parameters if parameter.default is None}
    needed -= {parameter.name for parameter in places[:count]}
    return needed <= call.keywords.keys() and (bool(given.kwarg) or call.keywords.keys() <= known)


def each(machine: Machine, choice: Choice, action: Callable[[Any], Value]) -> Value:
    """Do the same with every candidate, each as an alternative to the others; what they give."""
    rows: list[Any] = []
    given: list[Value] = []
    marks = [branches.mark(machine)]
    machine.counts.choosing += 1
    chosen = machine.guard("all", machine.site(), exact=False)
    for way, option in enumerate(choice.options, 1):

        def run(option: Any = option, way: int = way) -> Outcome:
            with Pushed(machine.guards, (chosen._replace(way=way),)):
                given.append(action(option))
            return RUNS_ON

        outcome, changes = machine.try_out(run)
        rows.append((outcome, changes, "all"))
        marks.append(branches.mark(machine))
    machine.counts.choosing -= 1
    branches.keep_apart(machine, marks)
    if not choice.all:
        rows.append((RUNS_ON, {}, "all"))
    machine.merge(rows)
    made = [atom for value in given for atom in bare(value) if not _is_network(atom)]
    plain = [atom for atom in made if isinstance(atom, Instance)]
    result: Value = ()
    if len(plain) > 1:
        result = (Choice(choice.site, tuple(dict.fromkeys(plain)), choice.all),)
        made = [atom for atom in made if atom not in plain]
    for atom in made:
        result = join(result, (atom,))
    return join(result, () if choice.all else (Opaque(),)) or UNKNOWN


def in_turn(machine: Machine, options: list[Any], action: Callable[[Any], Value]) -> Value:
    """Do the same with each of what a name may stand for, of which one may start the group and another know of none."""
    if len(options) == 1:
        return action(options[0])
    result: Value = ()
    marks = [branches.mark(machine)]
    for option in options:
        result = join(result, action(option))
        marks.append(branches.mark(machine))
    branches.keep_apart(machine, marks)
    return result


def _is_network(atom: Any) -> bool:
    """Whether it is a network, a data set or the like: of one among several, rules would take each for the only one."""
    held = [atom, *contents((atom,))]
    return any(isinstance(part, Instance) and not _is_plain(part) for part in held)


def _is_plain(instance: Instance) -> bool:
    bases = [base.name.partition(".")[0] for base in instance.cls.lineage() if isinstance(base, Symbol)]
    return instance.base is None and all(root in ("abc", "builtins", "typing", "typing_extensions") for root in bases)
