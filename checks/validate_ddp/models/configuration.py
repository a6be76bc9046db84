"""Settings that a file, the environment or the command line may override: a default of theirs is not their value.

A setting is what an option of argparse is: unknown, with the role that its name says. So the same script finds the same
wherever its settings come from, and whether or not their defaults can be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from validate_ddp.interpreter import roles
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Dict, Item, Mapping, Namespace, Open, Options, Overridden, Settings
from validate_ddp.interpreter.sameness import are_alike, hangs_on_rank, is_alike
from validate_ddp.interpreter.training import File
from validate_ddp.interpreter.values import (
    NONE,
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
    carried_by,
    reaching,
)

if TYPE_CHECKING:
    from validate_ddp.interpreter.calls import Call

_MADE_BY = (".EasyDict", ".edict", ".CfgNode", ".CN", ".AttrDict", ".Munch", ".ConfigDict", ".ConfigNode")
_READ_BY = frozenset({"yaml.safe_load", "yaml.load", "json.load", "json.loads", "tomllib.load", "toml.load"})
_OVERRIDING = frozenset("setattr __setattr__ __dict__".split())
_FILLED = ("BaseSettings", "TrainingArguments", "Seq2SeqTrainingArguments")
"""Classes whose instances look for their values elsewhere."""


def is_made_by(name: str) -> bool:
    """Whether a library's function or class makes a configuration object, or reads one from a file."""
    return ".OmegaConf." in name or name.endswith(_MADE_BY) or name in _READ_BY


def made(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A configuration object; where the rank went into what it is read from, each rank has one of its own."""
    for atom in bare(call.argument(0)):
        source = atom.path if isinstance(atom, File) else (atom,)
        if isinstance(atom, (Resource, Opaque)) and symbol.name in _READ_BY and hangs_on_rank(source):
            return (Opaque("", reaching(source)),)
    if symbol.last == "loads" and not is_alike(call.argument(0)):  # a line of data, as far as is known
        return (Opaque("", carried_by(call.given)),)
    return (Settings(call.site, dict(call.keywords)),)


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
            _forget(machine, atom.fields, alike)
        elif isinstance(atom, Class):
            _forget(machine, atom.members, alike)
        elif isinstance(atom, Mapping):
            _forget(machine, atom.fields, alike and isinstance(atom, Options))


def _is_of_all(by: Value) -> bool:
    """Whether what overrides settings is equal on every rank, or nothing known that ranks have of their own."""
    own = [part for part in reaching(by) if not isinstance(part, Item)]
    return are_alike(by) or not (own or any(isinstance(atom, OnRanks) for atom in by))


def _forget(machine: Machine, names: dict[str, Value], alike: bool) -> None:
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
        if not known:
            _forget(machine, holder.fields, _is_of_all((atom,)))
        if isinstance(atom, Resource):
            for field, value in atom.fields.items():
                machine.write(holder.fields, field, value)
    for field, value in call.keywords.items():
        machine.write(holder.fields, field, value)


def executed(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``exec(open("configurator.py").read())``: any constant of the module may have another value now."""
    known = call.args and all(isinstance(atom, Const) for atom in call.args[0])
    if machine.frame.function is None and not known:
        _forget(machine, machine.frame.module.scope.names, alike=True)
    return NONE
