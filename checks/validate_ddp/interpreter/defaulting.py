"""Dictionaries that make what is missing: ``defaultdict(list)``, as registries and metrics are kept in."""

from __future__ import annotations

from validate_ddp.interpreter import calls, registering
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Dict
from validate_ddp.interpreter.values import Site, Symbol, Value, bare, join


class Defaulting(Dict):
    """A ``defaultdict``. factory: what makes an item that is asked for and is not there."""

    __slots__ = ("factory",)

    def __init__(self, site: Site, fields: dict[str, Value], factory: Value = ()) -> None:
        super().__init__(site, fields)
        self.factory = factory


def complete(machine: Machine, holder: Dict, key: str | None) -> None:
    """See that ``holder`` has what is asked of it: what is registered in it, what it makes itself."""
    registering.complete(machine, holder)
    if isinstance(holder, Defaulting) and (key or "*") not in holder.fields and "*" not in holder.fields:
        if key is not None or not holder.fields:
            machine.write(holder.fields, key or "*", _made(machine, holder))


def looked_up(machine: Machine, holder: Dict) -> Value:
    """``holder[name]``, where only a run knows the name."""
    complete(machine, holder, None)
    return registering.looked_up(machine, holder)


def _made(machine: Machine, holder: Defaulting) -> Value:
    """A new item. What is made of an empty dictionary lies where its holder does: it is a part of it."""
    result: Value = ()
    for atom in bare(holder.factory):
        is_dict = isinstance(atom, Symbol) and atom.name == "builtins.dict"
        made: Value = (Dict(holder.site, {}),) if is_dict else calls.call_values(machine, atom)
        result = join(result, made)
    return result
