"""Settings that a file, the environment or the command line may override: a default of theirs is not their value.

A setting is what an option of argparse is: unknown, with the role that its name says. So the same script finds the same
wherever its settings come from, and whether or not their defaults can be read.
"""

from __future__ import annotations

import re

from validate_ddp.interpreter import roles
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Dict, Fields, Item, Mapping, Namespace, Open, Options, Overridden
from validate_ddp.interpreter.sameness import are_alike, hangs_on_rank
from validate_ddp.interpreter.values import (
    Class,
    Const,
    Instance,
    OnRanks,
    Opaque,
    Rank,
    RankTest,
    Resource,
    Symbol,
    Value,
    bare,
    reaching,
)
from validate_ddp.source.syntax import Expression, Name

_OVERRIDING = frozenset("setattr __setattr__ __dict__".split())
_FILLED = ("BaseSettings", "TrainingArguments", "Seq2SeqTrainingArguments")
"""Classes whose instances look for their values elsewhere."""


def is_told(machine: Machine, node: Expression, value: Value) -> bool:
    """Whether a dictionary that is handed on as ``**params`` is written out in this file, and never changed there."""
    atom = value[0] if len(value) == 1 else None
    if not isinstance(node, Name) or type(atom) is not Dict or "*" in atom.fields:
        return False
    data, name = machine.library.summaries.data(machine.frame.module.file) or b"", node.id.encode()
    written = re.findall(rb"^[ \t]*" + name + rb"[ \t]*(?::[^=\n]+)?=[ \t]*(?:\{|dict\()", data, re.MULTILINE)
    changed = re.search(rb"\b" + name + rb"[ \t]*(?:\[|\.(?:pop|update|setdefault|clear)\b|\|=)", data)
    return len(written) == 1 and changed is None


def overridable(name: str, value: Value, alike: bool = True) -> Value:
    """What a setting called ``name`` may be, whose default is ``value``: anything, if that is just a constant.

    alike: what may override it is equal on every rank.
    """
    return roles.suggested(name, alike=alike) if value and all(isinstance(atom, Const) for atom in value) else value


def of_open(instance: Instance, name: str, member: Value) -> Value:
    """A default in the body of a class, as seen on an instance of which nobody knows how it was filled."""
    marks = [part for part in instance.given if isinstance(part, Overridden)]
    alike = not hangs_on_rank(instance.given) and all(_is_of_all(mark.by) for mark in marks)
    plain = all(isinstance(atom, Opaque) and not atom.carries for atom in member)  # `field(default=False)`
    return roles.suggested(name, alike=alike) if plain else overridable(name, member, alike)


def override(machine: Machine, value: Value, by: Value = ()) -> None:
    """Let something out of sight, in which ``by`` takes part, replace the constants in an object, mapping or class."""
    alike = _is_of_all(by)
    for atom in bare(value):
        if isinstance(atom, Instance):
            if not alike or not is_open(atom):
                atom.given = (*atom.given, Overridden(atom.site, by=by))
            forget(machine, atom.fields, alike)
        elif isinstance(atom, Class):
            forget(machine, atom.members, alike)
        elif isinstance(atom, Mapping):
            forget(machine, atom.fields, alike and isinstance(atom, Options))


def _is_of_all(by: Value) -> bool:
    """Whether what overrides settings is equal on every rank, or nothing known that ranks have of their own."""
    own = [part for part in reaching(by) if not isinstance(part, Item)]
    return are_alike(by) or not (own or any(isinstance(atom, OnRanks) for atom in by))


def forget(machine: Machine, names: dict[str, Value], alike: bool) -> None:
    for name, value in list(names.items()):
        if not name.startswith(("*", "__")) and all(isinstance(atom, Const) for atom in value):
            machine.write(names, name, overridable(name, value, alike))


def is_open(instance: Instance) -> bool:
    """Whether nobody knows what the fields were set to when the object was made, or afterwards."""
    return any(isinstance(part, (Open, Overridden)) for part in instance.given)


def filled(cls: Class, call: Call) -> Value:
    """What an instance of a class without a constructor is given by position, or finds in the environment."""
    if call.args or any(isinstance(base, Symbol) and base.last in _FILLED for base in cls.lineage()):
        return (Overridden(call.site, by=tuple(atom for value in call.args for atom in value)),)
    return ()


def passed_on(machine: Machine, names: list[str], given: Value) -> None:
    """A function with these identifiers, which is not walked, gets ``given``: it may override what these hold."""
    own = tuple(part for part in reaching(given) if isinstance(part, (Rank, RankTest)))
    if not _OVERRIDING.isdisjoint(names):
        override(machine, given, own)
    elif "update" in names:
        override(machine, tuple(atom for atom in bare(given) if isinstance(atom, Resource)), own)


def updated(machine: Machine, holder: Resource, call: Call) -> None:
    """``holder.update(other, name=value)``: what is known is taken over, and anything may come from elsewhere."""
    for atom in bare(call.argument(0)):
        known = isinstance(atom, (Dict, Namespace)) and "*" not in atom.fields
        if not known and isinstance(holder, Fields):
            override(machine, (holder.of,), (atom,))
        elif not known:
            forget(machine, holder.fields, _is_of_all((atom,)))
        if isinstance(atom, Resource):
            for field, value in atom.fields.items():
                machine.write(holder.fields, field, value)
    for field, value in call.keywords.items():
        machine.write(holder.fields, field, value)
