"""Configuration objects: what makes them, and what fills them out of sight."""

from __future__ import annotations

import json

from validate_ddp.interpreter import configuration
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Dict, List, Settings
from validate_ddp.interpreter.rows import api
from validate_ddp.interpreter.sameness import hangs_on_rank, is_alike
from validate_ddp.interpreter.training import File
from validate_ddp.interpreter.values import (
    NONE,
    Const,
    Opaque,
    Resource,
    Symbol,
    Value,
    bare,
    carried_by,
    constant,
    reaching,
)
from validate_ddp.models import networks

_MADE_BY = (".EasyDict", ".edict", ".CfgNode", ".CN", ".AttrDict", ".Munch", ".ConfigDict", ".ConfigNode")
_READ_BY = frozenset({"yaml.safe_load", "yaml.load", "json.load", "json.loads", "tomllib.load", "toml.load"})


def _made(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A configuration object, known whole where its text is in the program; where the rank went into what it is read
    from, each rank has one of its own."""
    for atom in bare(call.argument(0)):
        source = atom.path if isinstance(atom, File) else (atom,)
        if isinstance(atom, (Resource, Opaque)) and symbol.name in _READ_BY and hangs_on_rank(source):
            return (Opaque("", reaching(source)),)
    text = constant(call.argument(0))
    if symbol.name == "json.loads" and isinstance(text, str):
        return _parsed(text, call)
    if symbol.last == "loads" and not is_alike(call.argument(0)):  # a line of data, as far as is known
        return (Opaque("", carried_by(call.given)),)
    if any(map(networks.is_model, bare(call.given))):  # `nets = Munch(encoder=encoder)` is no configuration
        return (Dict(call.site, dict(call.keywords)),)
    return (Settings(call.site, dict(call.keywords)),)


def _parsed(text: str, call: Call) -> Value:
    """What a JSON text of the program says."""
    try:
        return _value(json.loads(text), call)
    except (ValueError, RecursionError):  # it ends the script
        return (Settings(call.site, {}),)


def _value(held: object, call: Call) -> Value:
    if isinstance(held, dict):
        return (Dict(call.site, {key: _value(value, call) for key, value in held.items()}),)
    if isinstance(held, list):
        return (List(call.site, {str(place): _value(value, call) for place, value in enumerate(held)}),)
    return (Const(held),)


def _executed(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``exec(open("configurator.py").read())``: any constant of the module may have another value now."""
    known = call.args and all(isinstance(atom, Const) for atom in call.args[0])
    if machine.frame.function is None and not known:
        configuration.forget(machine, machine.frame.module.scope.names, alike=True)
    return NONE


def _makes_settings(name: str) -> bool:
    if name.startswith("builtins."):  # a name of which nobody knows where it is from
        return False
    return ".OmegaConf." in name or name.endswith(_MADE_BY)


DECLARED = (
    api(_READ_BY, _made),
    api("builtins.exec", _executed),
    api(model=_made, where=_makes_settings),
)
