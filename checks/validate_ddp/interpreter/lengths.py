"""Lengths of datasets and loaders, the arithmetic on them, and the learning rate schedules that they end in."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Batch, Item, Length
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.training import Loader, Scheduler, Subset
from validate_ddp.interpreter.values import (
    Instance,
    Opaque,
    Site,
    Value,
    bare,
    carried_by,
    merged,
)


def of(value: Value, site: Site) -> Value:
    """``len(value)``: for what may be a dataset or a loader, a number that knows whose length it is."""
    carries = carried_by(value)
    measured = [atom for atom in bare(value) if isinstance(atom, (Instance, Opaque, Loader, Subset))]
    if not measured or any(isinstance(part, (Batch, Item)) for part in carries):
        return (Opaque("len", carries, is_alike(value)),)
    length = Length(site, tuple(measured))
    in_step = all(isinstance(atom, Loader) for atom in bare(value))
    return (Opaque("len", merged(length, *carries), in_step or is_alike(value)),)


def combined(operator: str, left: Value, right: Value, carries: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a computation carries in which a length took part: the length, with the operation noted on it."""
    result: list[Any] = []
    for part in carries:
        if isinstance(part, Length):
            on_left = part in carried_by(left)
            name = operator if on_left or operator in ("Mult", "Add") else "into"
            part = Length(part.site, part.of, (*part.steps, (name, right if on_left else left)))
        result.append(part)
    return tuple(result)


def note_schedule(machine: Machine, name: str, scheduler: Scheduler | None, call: Call) -> None:
    """Record a schedule whose span is computed from a length."""
    note(machine, name, scheduler, [*call.args, *call.keywords.values()], call.site)


def note(machine: Machine, name: str, scheduler: Scheduler | None, values: list[Value], site: Site) -> None:
    for value in values:
        lengths = [part for part in carried_by(value) if isinstance(part, Length)]
        if lengths:
            machine.record(
                facts.Scheduler(
                    name, steps=value, lengths=tuple(lengths), scheduler=(scheduler,) if scheduler is not None else ()
                ),
                site,
            )
