"""What a file that the user names defines and nobody in sight calls: walked as its users would call it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from validate_ddp.findings import Span
from validate_ddp.interpreter import attributes, calls, facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.machine import Frame, Machine
from validate_ddp.interpreter.modules import Module
from validate_ddp.interpreter.values import Class, Function, Instance, Site, bare
from validate_ddp.source.syntax import ClassDef, FunctionDef

_DISTRIBUTED = (facts.Wrap, facts.ProcessGroup, facts.Sampler, facts.Launch)


def walk(machine: Machine, module: Module) -> bool:
    """Call what the file defines for others, with arguments that nobody knows; whether that trains on several ranks.

    Done where nothing that the file runs has to do with that: what it runs is forgotten then, as is what does not start
    the ranks and train. What a part does alone may hang on what the whole has set, and a tool is for one process.
    """
    if any(isinstance(fact, _DISTRIBUTED) for fact in machine.facts):
        return False
    if os.path.basename(module.file).startswith("test_"):  # pytest calls what is in it, in one process
        return False
    body = [
        node
        for node in machine.library.body(module)
        if isinstance(node, (FunctionDef, ClassDef)) and node.name in module.scope.names  # not behind `sys.exit()`
    ]
    trains, own = False, len(machine.facts)
    machine.frames.append(Frame(module, module.scope, None, None))
    try:
        for node in _for_others(machine, module, body):
            for atom in bare(machine.library.forced(machine, module.scope.names, node.name)):
                trains |= _kept(machine, partial(_use, machine, atom, node), _starts, _trains)
    finally:
        machine.frames.pop()
    if trains:
        del machine.facts[:own]
    return trains


def _starts(fact: Fact) -> bool:
    return isinstance(fact, facts.Launch) or (isinstance(fact, facts.ProcessGroup) and fact.name == "init")


def _trains(fact: Fact) -> bool:
    return isinstance(fact, facts.Backward)


def _kept(machine: Machine, use: Callable[[], None], *wanted: Callable[[Fact], bool]) -> bool:
    """Whether a use meets all that is wanted; what it has met is forgotten where it does not."""
    known, seen = len(machine.facts), dict(machine.counts.seen)
    use()
    found = machine.facts[known:]
    if all(any(map(is_met, found)) for is_met in wanted):
        return True
    del machine.facts[known:]
    machine.counts.seen = seen
    return False


def _for_others(machine: Machine, module: Module, body: list[Any]) -> list[Any]:
    """The public definitions that no other one names: who calls them is elsewhere."""
    return [
        node
        for node in body
        if not node.name.startswith("_")
        and machine.library.interesting(module, node.words)
        and not any(node.name in other.words for other in body if other is not node)
    ]


def _use(machine: Machine, atom: Any, node: FunctionDef | ClassDef) -> None:
    if isinstance(atom, Function) and id(atom.node) not in machine.walked:
        calls.call_atom(machine, atom, _open(machine, node))
    elif isinstance(atom, Class) and isinstance(node, ClassDef):
        methods = [part for part in node.body if isinstance(part, FunctionDef)]
        for made in bare(calls.instantiate(machine, atom, _open(machine, node))):
            for method in _for_others(machine, atom.module, methods) if isinstance(made, Instance) else ():
                for function in bare(attributes.bound(atom.members.get(method.name, ()), made)):
                    _kept(machine, partial(_use, machine, function, method), _trains)


def _open(machine: Machine, node: FunctionDef | ClassDef) -> Call:
    span = Span(*node.span)
    call = Call(node.name, [], {}, Site(machine.frame.module.path, span, span, ""))
    call.open = True
    return call
