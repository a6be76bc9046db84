"""Iterating over objects of the program's own classes: what their ``__iter__`` gives, as a loop over them draws it."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.attributes import bound
from validate_ddp.interpreter.iteration import loaders
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Batch, Enumerate, Generator, Iterator, Zip
from validate_ddp.interpreter.values import (
    Function,
    Instance,
    OnRanks,
    Site,
    Value,
    bare,
    join,
    on_ranks,
    reaching,
    unmarked,
)

_OWN = (Enumerate, Zip)
"""What draws from the objects that it was given."""
_DEEPEST = 3


def opened(machine: Machine, value: Value, depth: int = 0) -> Value:
    """The value, with what the ``__iter__`` of the program's objects gives in the place of these."""
    if depth > _DEEPEST or not any(_has_own_way(atom) or isinstance(atom, _OWN) for atom in bare(value)):
        return value
    result: Value = ()
    for atom in value:
        inner: Any = unmarked(atom)
        found: Value = (inner,)
        if _is_own(inner):
            found = _given(machine, inner, depth)
        elif _has_own_way(inner):  # it gives what the loader that it is one of gives, and may do more
            _called(machine, inner, "__iter__")
        elif isinstance(inner, _OWN):
            fields = {name: opened(machine, held, depth + 1) for name, held in inner.fields.items()}
            if any(fields[name] is not held for name, held in inner.fields.items()):
                found = (Zip(inner.site, fields) if isinstance(inner, Zip) else Enumerate(inner.site, **fields),)
        result = join(result, on_ranks(found, atom.who, atom.sure) if isinstance(atom, OnRanks) else found)
    return result


def note(machine: Machine, drawn: Value, site: Site, how: str, serial: int = 0) -> None:
    """Record that the loaders behind what the program's own ``__iter__`` gave are iterated over here."""
    for loader in _sources(drawn):
        machine.record(facts.Iterate(how, loader=(loader,), serial=serial), site)


def _sources(value: Value) -> list[Any]:
    """The loaders from which what is yielded was drawn."""
    found: dict[int, Any] = {}
    for atom in bare(value):
        if isinstance(atom, _OWN):
            found.update((id(loader), loader) for held in atom.fields.values() for loader in _sources(held))
        elif isinstance(atom, (Generator, Iterator)):
            for part in reaching(tuple(each for held in atom.fields.values() for each in held)):
                if isinstance(part, Batch):
                    found.update((id(loader), loader) for loader in loaders(part.loader))
    return list(found.values())


def _has_own_way(atom: Any) -> bool:
    return isinstance(atom, Instance) and atom.cls.find("__iter__")[0] is not None


def _is_own(atom: Any) -> bool:
    return _has_own_way(atom) and atom.base is None


def _given(machine: Machine, instance: Instance, depth: int) -> Value:
    """What ``iter(instance)`` is: what a generator yields, or what ``__next__`` of an iterator gives at each turn."""
    result: Value = ()
    for given in bare(_called(machine, instance, "__iter__")):
        if isinstance(given, Instance) and given.cls.find("__next__")[0] is not None:
            result = join(result, (Iterator(machine.site(), {"*": _called(machine, given, "__next__")}),))
        elif given is instance:
            result = join(result, (given,))
        else:
            result = join(result, opened(machine, (given,), depth + 1))
    return result or (instance,)


def following(machine: Machine, value: Value) -> Value:
    """What ``__next__`` of the program's own iterators gives; nothing of anything else."""
    result: Value = ()
    for atom in bare(value):
        if isinstance(atom, Instance) and atom.base is None and atom.cls.find("__next__")[0] is not None:
            result = join(result, _called(machine, atom, "__next__"))
    return result


def _called(machine: Machine, instance: Instance, name: str) -> Value:
    result: Value = ()
    for method in bare(bound(instance.cls.find(name)[0] or (), instance)):
        if isinstance(method, Function):
            result = join(result, machine.call(method))
    return result
