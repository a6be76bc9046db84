"""Methods of lists and dictionaries, and of the objects that hold a program's options."""

from __future__ import annotations

from validate_ddp.interpreter import configuration, iteration, registering, roles
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.callables import Choice
from validate_ddp.interpreter.defaulting import Defaulting
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Dict, Fields, Key, List, Mapping, Options, Settings, Tuple
from validate_ddp.interpreter.presence import completed
from validate_ddp.interpreter.rows import api, method
from validate_ddp.interpreter.values import (
    NONE,
    UNKNOWN,
    Class,
    Function,
    Opaque,
    Symbol,
    Value,
    bare,
    carried_by,
    join,
)


def _added(machine: Machine, holder: List, called: Call) -> Value:
    value = called.args[-1] if called.args else UNKNOWN
    value = iteration.element(value) if called.name == "extend" else value
    machine.write(holder.fields, "*", join(holder.fields.get("*", ()), value))
    return NONE


def _got(machine: Machine, holder: Mapping, called: Call) -> Value:
    key, fields = iteration.key_of(called.value("key")), holder.fields
    if isinstance(holder, Dict) and (key is None or key not in fields):
        registering.complete(machine, holder)
        if key is None and "*" not in fields:
            found = registering.looked_up(machine, holder)
            if any(isinstance(atom, (Choice, Class, Function)) for atom in bare(found)):
                return found
    if key is not None and key in fields:
        held = configuration.overridable(key, fields[key]) if isinstance(holder, Settings) else fields[key]
        return completed(held, called.value("default") or NONE)
    return fields.get("*") or roles.suggested(key or "", alike=isinstance(holder, Options))


def _updated(machine: Machine, holder: Mapping, called: Call) -> Value:
    configuration.updated(machine, holder, called)
    return NONE


def _listed(machine: Machine, holder: Mapping, called: Call) -> Value:
    held: Value = ()
    for value in () if isinstance(holder, Fields) else holder.fields.values():  # of an object, each is another thing
        held = join(held, value)
    if called.name == "items":
        held = (Tuple(called.site, {"0": (Key(holder),), "1": held or UNKNOWN}),)
    return (List(called.site, {"*": held or UNKNOWN}),)


def _copied(machine: Machine, holder: Mapping, called: Call) -> Value:
    kind = Dict if isinstance(holder, Fields) else type(holder)  # `vars(x).copy()` is no object's own any more
    return (kind(called.site, dict(holder.fields)),)


def _defaultdict(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """One of dictionaries, lists or numbers; of meters nothing is known, as what is done to each is not followed."""
    factory = call.argument(0)
    if not all(isinstance(atom, Symbol) and atom.name in _PLAIN for atom in bare(factory)):
        return (Opaque(f"{symbol.name}()", carried_by(call.given)),)
    fields = dict(call.keywords)
    for atom in bare(call.argument(1)):
        if isinstance(atom, Mapping):
            fields.update(atom.fields)
    return (Defaulting(call.site, fields, factory),)


_PLAIN = frozenset(f"builtins.{name}" for name in ("dict", "list", "set", "int", "float"))

DECLARED = (
    api("collections.defaultdict", _defaultdict),
    method("append extend insert add", _added, of=List),
    method("get pop setdefault", _got, of=Mapping, parameters="key= default="),
    method("update", _updated, of=Mapping),
    method("items values keys", _listed, of=Mapping),
    method("copy", _copied, of=Mapping),
)
