"""Lengths of datasets and loaders, the arithmetic on them, and the learning rate schedules that they end in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Batch, Item, Length
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.training import Loader, Scheduler, Subset
from validate_ddp.interpreter.values import (
    Function,
    Instance,
    Opaque,
    Site,
    Symbol,
    Value,
    bare,
    carried_by,
    join,
    merged,
)

if TYPE_CHECKING:
    from validate_ddp.interpreter.calls import Call

Model = Callable[[Machine, Symbol, "Call"], Value]


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


def find(name: str) -> Model | None:
    """The model of a learning rate schedule of a library."""
    root, _, _ = name.partition(".")
    last = name.rpartition(".")[2]
    if root == "torch" and ".lr_scheduler." in name and last[:1].isupper():
        return _schedule
    if root in ("transformers", "diffusers") and (last == "get_scheduler" or "_schedule" in last):
        return _schedule
    return None


def _schedule(machine: Machine, symbol: Symbol, call: Call) -> Value:
    scheduler = Scheduler(call.site)
    if symbol.last in ("LambdaLR", "MultiplicativeLR"):
        told = [_told_by(machine, value) for value in (*call.args, *call.keywords.values())]
        _note(machine, symbol.last, scheduler, told, call.site)
    note_schedule(machine, symbol.last, scheduler, call)
    return (scheduler,)


def _told_by(machine: Machine, value: Value) -> Value:
    """The factor that a function of the step gives, which may be computed from a length around it."""
    found: Value = ()
    for atom in bare(value):
        if isinstance(atom, Function):
            found = join(found, machine.call(atom, (Opaque("step"),)))
    return found


def note_schedule(machine: Machine, name: str, scheduler: Scheduler | None, call: Call) -> None:
    """Record a schedule whose span is computed from a length."""
    _note(machine, name, scheduler, [*call.args, *call.keywords.values()], call.site)


def _note(machine: Machine, name: str, scheduler: Scheduler | None, values: list[Value], site: Site) -> None:
    for value in values:
        lengths = [part for part in carried_by(value) if isinstance(part, Length)]
        if lengths:
            machine.record(
                facts.Scheduler(
                    name, steps=value, lengths=tuple(lengths), scheduler=(scheduler,) if scheduler is not None else ()
                ),
                site,
            )
