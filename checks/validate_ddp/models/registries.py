"""Registries of libraries: fvcore, mmengine, detectron2 and whoever else calls a class ``Registry``."""

from __future__ import annotations

from validate_ddp.interpreter import calls, iteration, registering
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.callables import Called
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.registering import Register
from validate_ddp.interpreter.rows import api, method
from validate_ddp.interpreter.values import UNKNOWN, Class, Function, Site, Symbol, Value, bare, constant, join


class Registering(Called):
    """``registry.register()``, which is then called with what it decorates. key: the name that it was given."""

    __slots__ = ("holder", "key")

    def __init__(self, site: Site, holder: Register, key: Value) -> None:
        super().__init__(site)
        self.holder = holder
        self.key = key


def _made(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Register(call.site),)


def _register(machine: Machine, holder: Register, call: Call) -> Value:
    """A decorator, or at once with what is registered."""
    given = [atom for atom in bare(call.given) if isinstance(atom, (Class, Function))]
    key = tuple(atom for atom in call.given if isinstance(constant((atom,)), str))
    if given:
        return _kept(machine, holder, key, (given[0],))
    return (Registering(call.site, holder, key),)


def _decorate(machine: Machine, decorator: Registering, call: Call) -> Value:
    return _kept(machine, decorator.holder, decorator.key, call.argument(0))


def _kept(machine: Machine, holder: Register, key: Value, value: Value) -> Value:
    for atom in bare(value):
        if isinstance(atom, (Class, Function)):
            machine.write(holder.fields, iteration.key_of(key) or atom.name, (atom,))
    return value


def _build(machine: Machine, holder: Register, call: Call) -> Value:
    """``registry.build(cfg)``: one of what it holds is made, of what the configuration says."""
    registering.complete(machine, holder)
    made = Call("", [], {}, call.site)
    made.open = True
    result: Value = ()
    for atom in bare(registering.looked_up(machine, holder)):
        result = join(result, calls.call_atom(machine, atom, made))
    return result or UNKNOWN


def _build_from(machine: Machine, symbol: Symbol, call: Call) -> Value:
    result: Value = ()
    for atom in bare(call.value("registry")):
        if isinstance(atom, Register):
            result = join(result, _build(machine, atom, call))
    return result or UNKNOWN


DECLARED = (
    api("Registry", _made, within="*"),
    method("register register_module register_class", _register, of=Register),
    method("__call__", _decorate, of=Registering),
    method("build", _build, of=Register),
    api("build_from_cfg", _build_from, within="mmcv mmengine mmdet", parameters="cfg registry"),
)
