"""What assignment binds: names, fields, items, and tuples of them."""

from __future__ import annotations

from validate_ddp.interpreter import (
    attributes,
    configuration,
    facts,
    gradients,
    iteration,
    quiet,
    records,
    roles,
    vocabulary,
)
from validate_ddp.interpreter.machine import Machine, Scope
from validate_ddp.interpreter.objects import Fields, List, Mapping, Options, Sequence
from validate_ddp.interpreter.sameness import hangs_on_rank, is_alike
from validate_ddp.interpreter.training import Layer, Sampler
from validate_ddp.interpreter.values import (
    UNKNOWN,
    Class,
    Function,
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
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Attribute, Expression, Name, Starred, Subscript


def assign(machine: Machine, target: Expression, value: Value, written: bool = True) -> None:
    """Bind a target: a name, a field, an item, or a tuple of targets; not ``written`` is what was worked out."""
    if isinstance(target, Name):
        scope = machine.frame.scope
        if target.id in scope.outer:
            scope = _home(scope, target.id)
        machine.unbound.pop((id(scope.names), target.id), None)
        machine.write(scope.names, target.id, roles.named(target.id, value, written))
    elif isinstance(target, Attribute):
        for atom in bare(machine.evaluate(target.value)):
            if target.attr == "require_backward_grad_sync":
                machine.record(facts.NoSync(target.attr, model=(atom,)), machine.site())
            if machine.journals:
                _settle(machine, atom, target.attr)
            if isinstance(atom, (Instance, Resource)):
                if target.attr == "epoch" and isinstance(atom, Sampler):
                    machine.record(facts.SetEpoch("epoch", target=(atom,), epoch=value), machine.site())
                machine.write(atom.fields, target.attr, roles.named(target.attr, value, written))
            elif isinstance(atom, ModuleRef):
                machine.write(atom.module.scope.names, target.attr, roles.named(target.attr, value))
            elif isinstance(atom, Class):
                machine.write(atom.members, target.attr, value)
            elif id(atom) in machine.late:  # it is no longer as it was made, by which it would be known
                del machine.late[id(atom)]
            elif isinstance(atom, Opaque) and (not is_alike(value) if atom.alike else hangs_on_rank(value)):
                machine.write(machine.settings, attributes.setting(atom, target.attr), value)
            elif isinstance(atom, Symbol):  # a field of a configuration object whose file is not there
                field = f"{atom.name}.{target.attr}"
                if field == quiet.PRINT:
                    quiet.replaced(machine, value)
                machine.environment.setdefault(
                    field, attributes.get(machine, atom, target.attr)
                )  # where no branch set it
                machine.write(machine.environment, field, roles.named(target.attr, value))
    elif isinstance(target, Subscript):
        _assign_item(machine, target, value)
    elif isinstance(target, (syntax.Tuple, syntax.List)):
        _unpack(machine, target.elts, value)
    elif isinstance(target, Starred):
        assign(machine, target.value, (Opaque("", carried_by(value)),))


def _settle(machine: Machine, atom: object, name: str) -> None:
    """Note what an option or a class's field is before a branch writes it: without the branch it stays that."""
    if isinstance(atom, Options) or (isinstance(atom, Instance) and atom.cls.find(name)[0] is not None):
        atom.fields.setdefault(name, attributes.get(machine, atom, name))
    elif isinstance(atom, Symbol):
        machine.environment.setdefault(f"{atom.name}.{name}", attributes.get(machine, atom, name))


def _home(scope: Scope, name: str) -> Scope:
    current = scope.parent
    while current is not None and name not in current.names and current.parent is not None:
        current = current.parent
    return current or scope


def _assign_item(machine: Machine, target: Subscript, value: Value) -> None:
    key_value, receiver = machine.evaluate(target.slice), machine.evaluate(target.value)
    if machine.gathers:
        gradients.restore(receiver, value)
    for atom in bare(receiver):
        if isinstance(atom, (List, Mapping)):
            key = iteration.key_of(key_value)
            if key is None and isinstance(atom, Fields):
                configuration.override(machine, (atom.of,), value)
            elif key is None:  # an unknown key: any item may be the one
                machine.write(atom.fields, "*", join(atom.fields.get("*", ()), value))
                for known, old in list(atom.fields.items()):
                    machine.write(atom.fields, known, join(old, value))
            else:
                machine.write(atom.fields, key, roles.named(key, value))
        elif isinstance(atom, Instance):
            for setter in bare(attributes.bound(atom.cls.find("__setitem__")[0] or (), atom)):
                if isinstance(setter, Function):
                    machine.call(setter, key_value, value)
        elif isinstance(atom, Opaque) and atom.alike and iteration.key_of(key_value) and not is_alike(value):
            machine.write(machine.settings, str(iteration.key_of(key_value)), value)
        elif isinstance(atom, Opaque) and atom.carries:  # an nn.ModuleDict
            put_into(atom, value)
        elif isinstance(atom, Symbol) and atom.name == "os.environ":
            given = value
            if machine.journals and constant(value) is not ...:  # in a branch: else the launcher's stands
                value = join(attributes.environment(machine, key_value), value)
            machine.write(machine.environment, str(iteration.key_of(key_value)), value)
            attributes.note_world(machine, key_value, value)
            if iteration.key_of(key_value) in vocabulary.RENDEZVOUS:
                machine.record(facts.Variable(str(iteration.key_of(key_value)), value=given), machine.site())


_MOST_PARTS = 200
"""Parameters given to one optimizer; more are of one model, of which the first tell enough. Not said: values merge."""


def put_into(holder: Opaque, value: Value) -> None:
    """Make ``value`` a part of the layers that the holder is."""
    for part in holder.carries:
        if isinstance(part, Layer):
            part.parts = (*part.parts, *carried_by(value))[:_MOST_PARTS]


def _unpack(machine: Machine, targets: list[Expression], value: Value) -> None:
    count = len(targets)
    starred = any(isinstance(target, Starred) for target in targets)
    parts: list[Value] = [()] * count
    for atom in bare(value):
        if isinstance(atom, Sequence) and "*" not in atom.fields and not starred:
            for index in range(count):
                parts[index] = join(parts[index], atom.fields.get(str(index), UNKNOWN))
        elif isinstance(atom, Instance) and not starred and (held := records.parts(atom)) and len(held) == count:
            for index in range(count):
                parts[index] = join(parts[index], held[index])
        else:
            element = iteration.picked(machine, iteration.element((atom,)))  # by a constant place
            for index in range(count):
                parts[index] = join(parts[index], element)
    for target, part in zip(targets, parts, strict=True):
        assign(machine, target, part or UNKNOWN)
