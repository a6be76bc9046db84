"""What assignment binds: names, fields, items, and tuples of them."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts, gradients, roles
from validate_ddp.interpreter.machine import Machine, Scope
from validate_ddp.interpreter.objects import List, Mapping, Sequence
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.training import Sampler
from validate_ddp.interpreter.values import (
    UNKNOWN,
    Class,
    Instance,
    ModuleRef,
    Opaque,
    Resource,
    Symbol,
    Value,
    bare,
    carried_by,
    constant,
    join,
)
from validate_ddp.models import attributes, distributed, iteration, optimizers

Node = list[Any]


def assign(machine: Machine, target: Node, value: Value, written: bool = True) -> None:
    """Bind a target: a name, a field, an item, or a tuple of targets; not ``written`` is what was worked out."""
    kind = target[0]
    if kind == "name":
        scope = machine.frame.scope
        if target[1] in scope.outer:
            scope = _home(scope, target[1])
        machine.write(scope.names, target[1], roles.named(target[1], value, written))
    elif kind == "attr":
        for atom in bare(machine.evaluate(target[1])):
            if isinstance(atom, (Instance, Resource)):
                if target[2] == "epoch" and isinstance(atom, Sampler):
                    machine.record(facts.SetEpoch("epoch", target=(atom,), epoch=value), machine.site())
                machine.write(atom.fields, target[2], roles.named(target[2], value, written))
            elif isinstance(atom, ModuleRef):
                machine.write(atom.module.scope.names, target[2], roles.named(target[2], value))
            elif isinstance(atom, Class):
                machine.write(atom.members, target[2], value)
            elif isinstance(atom, Opaque) and atom.alike and not is_alike(value):
                machine.write(machine.settings, target[2], value)
            elif isinstance(atom, Symbol):  # a field of a configuration object whose file is not there
                machine.write(machine.environment, f"{atom.name}.{target[2]}", roles.named(target[2], value))
    elif kind == "sub":
        _assign_item(machine, target, value)
    elif kind == "seq":
        _unpack(machine, target[2], value)
    elif kind == "star":
        assign(machine, target[1], (Opaque("", carried_by(value)),))


def _home(scope: Scope, name: str) -> Scope:
    current = scope.parent
    while current is not None and name not in current.names and current.parent is not None:
        current = current.parent
    return current or scope


def _assign_item(machine: Machine, target: Node, value: Value) -> None:
    key_value, receiver = machine.evaluate(target[2]), machine.evaluate(target[1])
    if machine.gathers:
        gradients.restore(receiver, value)
    for atom in bare(receiver):
        if isinstance(atom, (List, Mapping)):
            key = iteration.key_of(key_value)
            if key is None:  # an unknown key: any item may be the one
                machine.write(atom.fields, "*", join(atom.fields.get("*", ()), value))
                for known, old in list(atom.fields.items()):
                    machine.write(atom.fields, known, join(old, value))
            else:
                machine.write(atom.fields, key, roles.named(key, value))
        elif isinstance(atom, Opaque) and atom.alike and iteration.key_of(key_value) and not is_alike(value):
            machine.write(machine.settings, str(iteration.key_of(key_value)), value)
        elif isinstance(atom, Opaque) and atom.carries:  # an nn.ModuleDict
            optimizers.put_into(atom, value)
        elif isinstance(atom, Symbol) and atom.name == "os.environ":
            if machine.journals and constant(value) is not ...:  # in a branch: else the launcher's stands
                value = join(attributes.environment(machine, key_value), value)
            machine.write(machine.environment, str(iteration.key_of(key_value)), value)
            distributed.note_world(machine, key_value, value)


def _unpack(machine: Machine, targets: list[Node], value: Value) -> None:
    count = len(targets)
    starred = any(target[0] == "star" for target in targets)
    parts: list[Value] = [()] * count
    for atom in bare(value):
        if isinstance(atom, Sequence) and "*" not in atom.fields and not starred:
            for index in range(count):
                parts[index] = join(parts[index], atom.fields.get(str(index), UNKNOWN))
        else:
            element = iteration.element((atom,))
            for index in range(count):
                parts[index] = join(parts[index], element)
    for target, part in zip(targets, parts, strict=True):
        assign(machine, target, part or UNKNOWN)
