"""Classes of the program: what they are derived from, and which methods their objects surely lack."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.training import Loader
from validate_ddp.interpreter.values import Class, Instance, Symbol, bare
from validate_ddp.source.syntax import Attribute, ClassDef, Expression, Name, Subscript
from validate_ddp.source.traversal import last_name

_EMPTY = frozenset("object Protocol Generic ABC".split())
"""Bases that give a class no method of its own."""
_KEEPING = frozenset("dataclass runtime_checkable final".split())
"""Decorators that give it none."""
_OPEN = frozenset("__getattr__ __getattribute__ __dict__ setattr vars".split())
"""Words of a class whose objects may have what nobody spells out."""


def bases_of(machine: Machine, node: ClassDef) -> list[Any]:
    """The classes and names of libraries that a class is derived from: `Source[T]` is the class `Source`."""
    found: list[Any] = []
    for base in node.bases:
        known = _classes(machine, base)
        found += known or (_classes(machine, base.value) if isinstance(base, Subscript) else [])
    return found


def _classes(machine: Machine, node: Expression) -> list[Any]:
    return [atom for atom in bare(machine.evaluate(node)) if isinstance(atom, (Class, Symbol))]


def lacks_method(machine: Machine, atom: Any, name: str) -> bool:
    """Whether all classes of the object are in sight, and none has the word in it.

    Only of the names of methods that libraries declare: any other may be a field, which anybody can set.
    """
    if type(atom) is Loader:
        return name == "set_epoch" and not (atom.prepared or atom.derived or atom.open)
    if not isinstance(atom, Instance) or atom.base is not None or name in atom.fields:
        return False
    if machine.registry.method(name) is None:
        return False
    return all(_is_without(base, name) for base in atom.cls.lineage())


def _is_without(base: Any, name: str) -> bool:
    if isinstance(base, Symbol):
        return base.last in _EMPTY
    if not isinstance(base, Class):
        return False
    named = [expression for expression in base.node.bases if _last(expression) not in _EMPTY]
    if len(named) > sum(1 for each in base.bases if isinstance(each, Class)):
        return False  # what one of them is, is not known
    if any(_last(each) not in _KEEPING for each in base.node.decorator_list):
        return False
    if not _OPEN.isdisjoint(base.members) or name in base.members:
        return False
    return _OPEN.union((name, f'"{name}')).isdisjoint(base.node.words)


def _last(node: Expression) -> str:
    if isinstance(node, Subscript):
        return _last(node.value)
    return last_name(node) if isinstance(node, (Name, Attribute)) else ""
