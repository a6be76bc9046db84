"""Programs of several commands: objects that decorate functions of the program, and call one of them when called."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import calls, candidates, roles
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Container
from validate_ddp.interpreter.values import UNKNOWN, Class, Function, Instance, Value, bare
from validate_ddp.source.syntax import Attribute, ClassDef, Expression, FunctionDef, Name
from validate_ddp.source.syntax import Call as CallNode


def run(machine: Machine, commands: list[Any]) -> Value:
    """Call one of these functions, with arguments from the command line; not one that runs already.

    A function that hands itself to its command line wants the parser, as `save_hyperparameters(setup)` of litgpt does.
    """
    running = [frame.function.node for frame in machine.frames if frame.function is not None]
    functions = list(dict.fromkeys(atom for atom in commands if isinstance(atom, Function)))
    functions = [function for function in functions if not any(function.node is node for node in running)]
    for function in functions:
        function.marks |= {roles.FILLED}
    chosen = candidates.among(machine, functions)
    result: Value = UNKNOWN
    for atom in bare(chosen):
        call = Call("", [], {}, machine.site())
        call.open = True
        result = calls.call_atom(machine, atom, call)
    return result


def meant_by(machine: Machine, value: Value) -> list[Any]:
    """The functions that a command line runs which is given this: a function, a class, or several of them."""
    found: list[Any] = []
    for atom in bare(value):
        if isinstance(atom, Container):
            found += [inner for held in atom.fields.values() for inner in meant_by(machine, held)]
        elif isinstance(atom, Class):
            call = Call("", [], {}, machine.site())
            call.open = True
            found += [inner for made in bare(calls.instantiate(machine, atom, call)) for inner in _methods(made)]
        elif isinstance(atom, Instance):
            found += _methods(atom)
        else:
            found.append(atom)
    return found


def _methods(instance: Any) -> list[Any]:
    members = [(name, atom) for name, value in instance.cls.members.items() for atom in bare(value)]
    return [atom.bind(instance) for name, atom in members if isinstance(atom, Function) and not name.startswith("_")]


def of_module(machine: Machine) -> list[Any]:
    """All functions of the module that runs."""
    names = machine.frame.module.scope.names
    wanted = [node.name for node in machine.library.body(machine.frame.module) if isinstance(node, FunctionDef)]
    return [atom for name in wanted if name in names for atom in bare(machine.library.forced(machine, names, name))]


def decorated_by(machine: Machine, target: Any) -> list[Any]:
    """The functions of the modules in use that a method of ``target`` decorates: `@cli.command()`."""
    found: list[Any] = []
    for module in list(machine.library.modules.values()):
        if module.state == "new":
            continue
        names = module.scope.names
        for node in machine.library.body(module):
            if not isinstance(node, (FunctionDef, ClassDef)):
                continue
            roots = {_root(decorator) for decorator in node.decorator_list}
            if any(root in names and _is(machine, names, root, target) for root in roots):
                found += bare(machine.library.forced(machine, names, node.name))
    return found


def _root(decorator: Expression) -> str:
    """``cli`` in ``@cli.command()``; empty for a decorator that is no method of a plain name."""
    node = decorator.func if isinstance(decorator, CallNode) else decorator
    return node.value.id if isinstance(node, Attribute) and isinstance(node.value, Name) else ""


def _is(machine: Machine, names: dict[str, Value], name: str, target: Any) -> bool:
    held = bare(machine.library.forced(machine, names, name))
    return any(atom is target or _same_function(atom, target) for atom in held)


def _same_function(atom: Any, target: Any) -> bool:
    return isinstance(atom, Function) and isinstance(target, Function) and atom.node is target.node
