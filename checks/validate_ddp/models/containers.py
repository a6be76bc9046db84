"""Methods of lists and dictionaries, and of the objects that hold a program's options."""

from __future__ import annotations

from validate_ddp.interpreter import configuration, iteration, roles
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Container, List, Mapping, Options, Settings, Tuple
from validate_ddp.interpreter.presence import completed
from validate_ddp.interpreter.rows import Methods
from validate_ddp.interpreter.values import NONE, UNKNOWN, Opaque, Value, join


def _call(machine: Machine, holder: Container | Options, called: Call) -> Value | None:
    """Call a method of a container or of what holds options; None for one without a model."""
    name, fields = called.name, holder.fields
    if isinstance(holder, List) and name in ("append", "extend", "insert", "add"):
        value = called.args[-1] if called.args else UNKNOWN
        value = iteration.element(value) if name == "extend" else value
        machine.write(fields, "*", join(fields.get("*", ()), value))
        return NONE
    if isinstance(holder, Mapping):
        key = iteration.key_of(called.argument(0))
        if name in ("get", "pop", "setdefault"):
            if key is not None and key in fields:
                held = configuration.overridable(key, fields[key]) if isinstance(holder, Settings) else fields[key]
                return completed(held, called.argument(1) or NONE)
            return fields.get("*") or roles.suggested(key or "", alike=isinstance(holder, Options))
        if name == "update":
            configuration.updated(machine, holder, called)
            return NONE
        if name in ("items", "values", "keys"):
            held = ()
            for value in fields.values():
                held = join(held, value)
            if name == "items":
                held = (Tuple(called.site, {"0": (Opaque("key"),), "1": held or UNKNOWN}),)
            return (List(called.site, {"*": held or UNKNOWN}),)
        if name == "copy":
            return (type(holder)(called.site, dict(fields)),)
    return None


DECLARED = (Methods(Container, _call), Methods(Options, _call))
