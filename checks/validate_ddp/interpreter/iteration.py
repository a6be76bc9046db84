"""What iterating gives: elements of containers and loaders, keys, and whether a loop counts epochs or steps."""

from __future__ import annotations

from typing import Any

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names_of_training import COUNTING, PASSING
from validate_ddp.interpreter.nested import modules_of
from validate_ddp.interpreter.objects import (
    Batch,
    Dict,
    Enumerate,
    Generator,
    Item,
    Iterator,
    Range,
    Sequence,
    Tuple,
    Zip,
)
from validate_ddp.interpreter.ranks import PARTIAL, Who, all_of, opposite
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.training import Loader
from validate_ddp.interpreter.values import (
    UNKNOWN,
    Atom,
    Const,
    Instance,
    OnRanks,
    Opaque,
    Resource,
    Site,
    Value,
    bare,
    carried_by,
    constant,
    join,
    merged,
    reaching,
    unmarked,
)
from validate_ddp.source.syntax import Call, Constant, Expression
from validate_ddp.source.traversal import last_name

_DEEPEST = 3
_NOWHERE = Site("", Span(0, 0, 0, 0), Span(0, 0, 0, 0), "")
_ITEM = Item(_NOWHERE)
"""Carried by what was drawn from something unknown."""


def element(value: Value, depth: int = 0) -> Value:
    """What a loop over ``value`` binds."""
    if depth > _DEEPEST:  # an iterator may run over itself
        return UNKNOWN
    found: Value = ()
    for atom in bare(value):
        if isinstance(atom, Instance) and atom.base is not None:
            atom = atom.base
        if isinstance(atom, Resource):
            found = join(found, _resource_element(atom, depth + 1))
        elif isinstance(atom, Opaque):
            found = join(found, modules_of((atom,)) or (Opaque("", merged(_ITEM, *atom.carries)),))
        else:
            found = join(found, UNKNOWN)
    return found or UNKNOWN


def elements_by_rank(value: Value) -> dict[tuple[Who, bool], Value]:
    """What a loop over ``value`` binds on all ranks, and on some alone: hooks that rank zero adds for itself.

    By the ranks, and whether it is no guess which they are. Empty where all of it is on all ranks, and where all ranks
    draw, each from a sequence of its own.
    """
    found: dict[tuple[Who, bool], Value] = {}
    draw = {atom.who for atom in value if isinstance(atom, OnRanks)}
    if all(isinstance(atom, OnRanks) and not _is_empty(atom) and opposite(atom.who) in draw for atom in value):
        return {}
    for atom in value:
        if _is_empty(atom):
            continue
        for part in element((atom,)):
            marks = [each for each in (atom, part) if isinstance(each, OnRanks)]
            who = (all_of(mark.who for mark in marks), all(mark.sure for mark in marks))
            if who[0] != "none":
                found[who] = join(found.get(who, ()), (unmarked(part),))
    return found if any(who in PARTIAL for who, _ in found) else {}


def _is_empty(atom: Atom) -> bool:
    """Whether there is nothing to draw, as from `[]` or `{}`."""
    return isinstance(inner := unmarked(atom), (Sequence, Dict)) and not inner.fields


def _resource_element(atom: Resource, depth: int) -> Value:
    if isinstance(atom, Dict):
        return tuple(Const(key) for key in atom.fields if key != "*")[:4] or UNKNOWN
    if isinstance(atom, (Sequence, Generator, Iterator)):
        found: Value = ()
        for value in atom.fields.values():
            found = join(found, value)
        return found or UNKNOWN
    if isinstance(atom, Enumerate):
        counts = bool(loaders(atom.inner)) or is_alike(atom.inner)  # ranks take their batches in step
        return (Tuple(atom.site, {"0": (Opaque("index", (), counts),), "1": element(atom.inner, depth)}),)
    if isinstance(atom, Zip):
        return (Tuple(atom.site, {name: element(value, depth) for name, value in atom.fields.items()}),)
    if isinstance(atom, Loader):
        return (Opaque("batch", (Batch(atom.site, loader=(atom,)),)),)
    return (Opaque("", carried_by((atom,)), is_alike((atom,))),)


def loaders(value: Value, seen: set[int] | None = None) -> list[Any]:
    """The data loaders that a loop over ``value`` draws from; none for what was itself drawn from one already."""
    found: list[Any] = []
    seen = set() if seen is None else seen
    for part in reaching(tuple(atom for atom in bare(value) if not _is_item(atom))):
        if isinstance(part, Instance) and isinstance(part.base, Loader):
            found.append(part.base)
        elif isinstance(part, Resource) and id(part) not in seen:
            seen.add(id(part))  # iterators hold each other
            if isinstance(part, Loader):
                found.append(part)
            elif isinstance(part, (Enumerate, Zip, Iterator)):
                found.extend(loader for inner in part.fields.values() for loader in loaders(inner, seen))
    return found


def _is_item(atom: Any) -> bool:
    return isinstance(atom, Opaque) and any(part is _ITEM for part in atom.carries)


def picked(machine: Machine, value: Value) -> Value:
    """What is taken from many by a constant place, or as the largest: outside of a loop over them it is no item of one
    rank's share, but the same choice for all."""
    if not all(loop.counts for loop in machine.loops):
        return value
    return tuple(
        Opaque(atom.name, tuple(part for part in atom.carries if part is not _ITEM), atom.alike)
        if isinstance(atom, Opaque) and _is_item(atom)
        else atom
        for atom in value
    )


def note(machine: Machine, value: Value, site: Site, how: str = "for", serial: int = 0) -> None:
    """Record that the loaders in ``value`` are iterated over here, by a ``for`` (its serial given) or by ``iter``."""
    for loader in loaders(value):
        machine.record(facts.Iterate(how, loader=(loader,), serial=serial, open=_is_open(value)), site)


def _is_open(value: Value) -> bool:
    """Whether what a loop goes over may be something unknown."""
    return any(
        _is_open(atom.inner) if isinstance(atom, Enumerate) else isinstance(atom, Opaque) and not loaders((atom,))
        for atom in bare(value)
    )


def counting(node: Expression, value: Value) -> tuple[bool, bool]:
    """Whether a loop over ``node`` counts (epochs, steps), and whether it surely runs only once."""
    if isinstance(node, Call):
        last = last_name(node.func)
        if last in COUNTING.words:
            return True, _runs_once(node.args) or _is_short(value)
        if last in PASSING.words and node.args:
            return counting(node.args[0], value)
    if any(isinstance(atom, Range) for atom in bare(value)):
        return True, False
    return False, False


def _runs_once(arguments: list[Expression]) -> bool:
    values = [argument.value for argument in arguments if isinstance(argument, Constant)]
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if len(numbers) != len(arguments) or not numbers:
        return False
    if len(numbers) == 1:
        return numbers[0] <= 1
    return numbers[1] - numbers[0] <= 1


def _is_short(value: Value) -> bool:
    """Whether a range ends at one, or at nothing: `for epoch in range(start, epochs)` where `epochs=1` was passed."""
    atom = value[0] if len(value) == 1 else None
    if not isinstance(atom, Range) or not 0 < len(atom.fields) < 3:
        return False
    last = constant(atom.fields[str(len(atom.fields) - 1)])
    return type(last) is int and last <= 1


def key_of(value: Value) -> str | None:
    """The constant key of a subscript, as text."""
    if len(value) == 1 and isinstance(value[0], Const) and isinstance(value[0].value, (str, int)):
        return str(value[0].value)
    return None
