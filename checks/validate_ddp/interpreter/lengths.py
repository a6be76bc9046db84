"""Lengths of datasets and loaders, the arithmetic on them, and the learning rate schedules that they end in."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.values import (
    Instance,
    Opaque,
    Resource,
    Site,
    Value,
    bare,
    carried_by,
)

_COUNTED = ("loader", "subset")


def of(value: Value, site: Site) -> Value:
    """``len(value)``: for what may be a dataset or a loader, a number that knows whose length it is."""
    carries = carried_by(value)
    measured = [
        atom
        for atom in bare(value)
        if isinstance(atom, (Instance, Opaque)) or (isinstance(atom, Resource) and atom.kind in _COUNTED)
    ]
    if not measured or any(isinstance(part, Resource) and part.kind in ("batch", "item") for part in carries):
        return (Opaque("len", carries, is_alike(value)),)
    length = Resource("length", site, {"of": tuple(measured)})
    in_step = all(isinstance(atom, Resource) and atom.kind == "loader" for atom in bare(value))
    return (Opaque("len", (length, *carries)[:12], in_step or is_alike(value)),)


def combined(operator: str, left: Value, right: Value, carries: tuple[Any, ...], site: Site) -> tuple[Any, ...]:
    """What a computation carries in which a length took part: the length, with the operation noted on it."""
    result: list[Any] = []
    for part in carries:
        if isinstance(part, Resource) and part.kind == "length":
            on_left = part in carried_by(left)
            step = Resource("term", site, {"operand": right if on_left else left})
            name = operator if on_left or operator in ("Mult", "Add") else "into"
            part = Resource("length", part.site, {**part.fields, f"{len(part.fields)} {name}": (step,)})
        result.append(part)
    return tuple(result)


def terms(length: Resource) -> list[tuple[str, Value]]:
    """The operations on a length since it was taken, in order: the operator, and the other operand."""
    found = []
    for key, value in length.fields.items():
        _, _, operator = key.partition(" ")
        if operator:
            found.append((operator, value[0].get("operand")))
    return found


def note_schedule(machine: Machine, name: str, scheduler: Resource | None, call: Call) -> None:
    """Record a schedule whose span is computed from a length."""
    note(machine, name, scheduler, [*call.args, *call.keywords.values()], call.site)


def note(machine: Machine, name: str, scheduler: Resource | None, values: list[Value], site: Site) -> None:
    for value in values:
        lengths = [p for p in carried_by(value) if isinstance(p, Resource) and p.kind == "length"]
        if lengths:
            machine.record(
                "scheduler",
                name,
                site,
                steps=value,
                lengths=tuple(lengths),
                scheduler=(scheduler,) if scheduler is not None else (),
            )
