"""Settings that a file, the environment or the command line may override: a default of theirs is not their value.

A setting is what an option of argparse is: unknown, with the role that its name says. So the same script finds the same
wherever its settings come from, and whether or not their defaults can be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from validate_ddp.program import roles
from validate_ddp.program.machine import Machine
from validate_ddp.program.values import NONE, Class, Const, Instance, Opaque, Resource, Symbol, Value, bare

if TYPE_CHECKING:
    from validate_ddp.program.calls import Call

OVERRIDDEN = "overridden"
"""Marks, among what an object was given, that its fields may have been set from elsewhere."""
KIND = "settings"
"""The kind of a configuration object: of yacs, OmegaConf or ml_collections, an attribute dictionary, a file read."""
_MADE_BY = (".EasyDict", ".edict", ".CfgNode", ".CN", ".AttrDict", ".Munch", ".ConfigDict", ".ConfigNode")
_READ_BY = frozenset({"yaml.safe_load", "yaml.load", "json.load", "json.loads", "tomllib.load", "toml.load"})
_OVERRIDING = frozenset("setattr __setattr__ __dict__".split())
_FILLED = ("BaseSettings", "TrainingArguments", "Seq2SeqTrainingArguments")
"""Classes whose instances look for their values elsewhere."""
_MAPPINGS = ("dict", "namespace", KIND)


def is_made_by(name: str) -> bool:
    """Whether a library's function or class makes a configuration object, or reads one from a file."""
    return ".OmegaConf." in name or name.endswith(_MADE_BY) or name in _READ_BY


def made(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Resource(KIND, call.site, dict(call.keywords)),)


def overridable(name: str, value: Value) -> Value:
    """What a setting called ``name`` may be, whose default is ``value``: anything, if that is just a constant."""
    return roles.suggested(name) if value and all(isinstance(atom, Const) for atom in value) else value


def of_open(name: str, member: Value) -> Value:
    """A default in the body of a class, as seen on an instance of which nobody knows how it was filled."""
    plain = all(isinstance(atom, Opaque) and not atom.carries for atom in member)  # `field(default=False)`
    return roles.suggested(name) if plain else overridable(name, member)


def override(machine: Machine, value: Value) -> None:
    """Let something out of sight replace the constants in an object, a mapping or a class."""
    for atom in bare(value):
        if isinstance(atom, Instance):
            if not is_open(atom):
                atom.given = (*atom.given, Resource(OVERRIDDEN, atom.site))
            _forget(machine, atom.fields)
        elif isinstance(atom, Class):
            _forget(machine, atom.members)
        elif isinstance(atom, Resource) and atom.kind in _MAPPINGS:
            _forget(machine, atom.fields)


def _forget(machine: Machine, names: dict[str, Value]) -> None:
    for name, value in list(names.items()):
        if not name.startswith(("*", "__")) and all(isinstance(atom, Const) for atom in value):
            machine.write(names, name, overridable(name, value))


def is_open(instance: Instance) -> bool:
    """Whether nobody knows what the fields were set to when the object was made, or afterwards."""
    return any(isinstance(part, Resource) and part.kind in ("open", OVERRIDDEN) for part in instance.given)


def is_filled_elsewhere(cls: Class, by_position: bool) -> bool:
    """Whether instances of a class without a constructor get values by position, or from the environment."""
    return by_position or any(isinstance(base, Symbol) and base.last in _FILLED for base in cls.lineage())


def passed_on(machine: Machine, names: list[str], given: Value) -> None:
    """A function with these identifiers, which is not walked, gets ``given``: it may override what these hold."""
    if not _OVERRIDING.isdisjoint(names):
        override(machine, given)
    elif "update" in names:
        override(machine, tuple(atom for atom in bare(given) if isinstance(atom, Resource)))


def updated(machine: Machine, holder: Resource, call: Call) -> None:
    """``holder.update(other, name=value)``: what is known is taken over, and anything may come from elsewhere."""
    for atom in bare(call.argument(0)):
        known = isinstance(atom, Resource) and atom.kind in ("dict", "namespace") and "*" not in atom.fields
        if not known:
            _forget(machine, holder.fields)
        if isinstance(atom, Resource):
            for field, value in atom.fields.items():
                machine.write(holder.fields, field, value)
    for field, value in call.keywords.items():
        machine.write(holder.fields, field, value)


def executed(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``exec(open("configurator.py").read())``: any constant of the module may have another value now."""
    known = call.args and all(isinstance(atom, Const) for atom in call.args[0])
    if machine.frame.function is None and not known:
        _forget(machine, machine.frame.module.scope.names)
    return NONE
