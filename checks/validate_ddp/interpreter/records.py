"""Classes whose constructor is written for them: dataclasses, attrs and pydantic models, named tuples."""

from __future__ import annotations

from validate_ddp.interpreter import configuration
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.values import Class, Function, Instance, Symbol, Value, bare, join

_AFTER = ("__post_init__", "__attrs_post_init__", "model_post_init")
"""Methods that such a constructor calls when the fields are set."""


def fields_of(cls: Class) -> list[str]:
    """The fields in the order in which a constructor takes them: those of the farthest base first."""
    named = [name for base in reversed(cls.lineage()) if isinstance(base, Class) for name in base.node.fields]
    return list(dict.fromkeys(named))


def fill(machine: Machine, instance: Instance, call: Call) -> None:
    """What the constructor does that nobody has written: arguments become fields, and a method may follow."""
    names = fields_of(instance.cls)
    if len(call.args) <= len(names):
        instance.fields.update(zip(names, call.args, strict=False))
        given = Call(call.name, [], call.keywords, call.site)
    else:
        given = call
    instance.given = (*instance.given, *configuration.filled(instance.cls, given))
    instance.fields.update(call.keywords)
    if names:
        for name in _AFTER:
            member, _ = instance.cls.find(name)
            for function in bare(member or ()):
                if isinstance(function, Function):
                    machine.call(function.bind(instance))


def parts(instance: Instance) -> list[Value] | None:
    """The items of a named tuple, in their order; None for any other object."""
    if not any(isinstance(base, Symbol) and base.last == "NamedTuple" for base in instance.cls.lineage()):
        return None
    return [instance.fields.get(name) or instance.cls.find(name)[0] or () for name in fields_of(instance.cls)]


def replaced(machine: Machine, value: Value, call: Call) -> Value:
    """``dataclasses.replace(value, name=...)``: another object with some fields changed."""
    result: Value = ()
    for atom in bare(value):
        if isinstance(atom, Instance):
            other = Instance(atom.cls, atom.site)
            other.fields, other.given, other.base = {**atom.fields, **call.keywords}, atom.given, atom.base
            atom = other
        result = join(result, (atom,))
    return result
