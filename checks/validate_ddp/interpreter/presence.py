"""Values that only some ranks have, and uses of them where others have None, or a name that was never bound."""

from __future__ import annotations

from typing import Any

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts, ranks, wrapped
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine, Scope
from validate_ddp.interpreter.ranks import Who
from validate_ddp.interpreter.training import DDP
from validate_ddp.interpreter.values import Instance, OnRanks, Symbol, Value, is_none, join, on_ranks
from validate_ddp.source.syntax import Attribute, Expression, Extent, Lambda, Name
from validate_ddp.source.traversal import dotted

_HOLDERS = ("zero", "local-zero", "nonzero", "local-nonzero")
_ITSELF = frozenset({"__class__", "__name__", "__doc__", "__dict__"})


def marked(value: Value) -> bool:
    """Whether a value may be one that only some ranks hold. Cheap: the marks of a merge are first or last."""
    return bool(value) and (type(value[0]) is OnRanks or type(value[-1]) is OnRanks)


def completed(value: Value, default: Value) -> Value:
    """A value that may be there on some ranks only, with the default that the others get."""
    held = {atom.who if isinstance(atom, OnRanks) else "all" for atom in value}
    if len(held) != 1 or "all" in held:
        return value
    sure = all(atom.sure for atom in value if isinstance(atom, OnRanks))
    return join(value, on_ranks(default, ranks.opposite(held.pop()), sure))


EVERY_RANK: tuple[Who, bool] = ("all", True)


def taken(machine: Machine, node: Expression, value: Value, name: str, span: Extent) -> tuple[Who, bool]:
    """``note`` where some ranks may lack the value; and what wrappers lack is recorded."""
    if value and type(value[0]) is DDP:
        wrapped.note(machine, value, name, span)
    return note(machine, node, value, name, span) if marked(value) else EVERY_RANK


def note(machine: Machine, node: Expression, value: Value, name: str, span: Extent) -> tuple[Who, bool]:
    """Record that ``name`` is taken from ``value``, which ``node`` evaluates to, where some ranks here have none;
    an empty one where it is read, whatever for: then None is a value like any other.

    Returns the ranks that have it, and so go on, and whether these are no guess from a name.
    """
    said = dotted(node)
    having = [atom for atom in value if isinstance(atom, OnRanks) and (not name or not is_none(atom.atom))]
    if not having or having[0].who not in _HOLDERS or not said or name in _ITSELF:
        return EVERY_RANK
    holder = having[0].who
    others, sure = ranks.opposite(holder), all(atom.sure for atom in value if isinstance(atom, OnRanks))
    if machine.who not in ("all", others):
        return EVERY_RANK
    held = [atom for atom in value if not isinstance(atom, OnRanks) or ranks.both(others, atom.who) != "none"]
    if (held and not name) or not all(is_none(atom.atom if isinstance(atom, OnRanks) else atom) for atom in held):
        return EVERY_RANK
    if not held and not _is_bound_nowhere_else(machine, node):
        return EVERY_RANK
    if Flag.TRIED in machine.flags or Flag.SHORTED in machine.flags:
        return holder, sure
    site = machine.site(span)
    whole = Span(*span) == site.statement
    machine.record(
        facts.Absence(name, object=tuple(having), said=said, holder=holder, none=bool(held), whole=whole, sure=sure),
        site,
    )
    return holder, sure


def note_unbound(machine: Machine, node: Name, value: Value) -> None:
    """Record that a name is read, whatever for, which some ranks here have never bound. Where a lambda is called is not
    known as its body is walked, nor by whom: nothing is said of it."""
    function = machine.frame.function
    if function is not None and isinstance(function.node, Lambda):
        return
    note(machine, node, value, "", machine.frame.statement)


def _is_bound_nowhere_else(machine: Machine, node: Expression) -> bool:
    """Whether ranks that did not bind this name or field surely lack it: no class has it, nothing makes it up."""
    if isinstance(node, Name):
        scope: Scope | None = machine.frame.scope
        while scope is not None and node.id not in scope.names:
            scope = scope.parent
        return scope is not None and (id(scope.names), node.id) in machine.unbound
    if not isinstance(node, Attribute):
        return False
    base = machine.evaluate(node.value)
    if len(base) != 1 or not isinstance(base[0], Instance):
        return False
    instance = base[0]
    if (id(instance.fields), node.attr) not in machine.unbound:
        return False
    if instance.base is not None or any(_is_unknown(cls) for cls in instance.cls.lineage()):
        return False
    return all(instance.cls.find(name)[0] is None for name in (node.attr, "__getattr__", "__getattribute__"))


def _is_unknown(cls: Any) -> bool:
    """Whether a class outside the program may have the field."""
    return isinstance(cls, Symbol) and cls.last not in ("object", "ABC", "Module", "Generic", "Protocol")
