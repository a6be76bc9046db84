"""What a function that is not worth a walk may have set: fields of the objects that it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Mapping
from validate_ddp.interpreter.values import Const, Function, Instance, Opaque, Value, bare, join
from validate_ddp.source.syntax import Assign, Attribute, AugAssign, Constant, FunctionDef, Name, Subscript
from validate_ddp.source.traversal import walk


class _Set(NamedTuple):
    """A field of a parameter that is assigned to, or the item of one: ``self.sums["n"] += 1``.

    alike: each call sets it to the same, or adds as much.
    """

    parameter: str
    field: str
    item: str | None
    alike: bool


def forget(machine: Machine, function: Function, call: Call) -> None:
    """Let constants be no more known that the call may have replaced: ``self.steps``, which was 0 to begin with."""
    if not isinstance(function.node, FunctionDef):
        return
    node = function.node
    places = {parameter.name: index for index, parameter in enumerate(node.args.parameters)}
    summaries = machine.library.summaries
    for each in summaries.once(("set", function.module.file, node.span), lambda: tuple(_sets(node))):
        for holder in bare(_given(function, call, places, each.parameter)):
            if isinstance(holder, Instance) and each.field in holder.fields:
                _widen(machine, holder, each)


def _given(function: Function, call: Call, places: dict[str, int], name: str) -> Value:
    index = places.get(name)
    if index is None:
        return ()
    if function.bound is None:
        return call.argument(index, name)
    return (function.bound,) if index == 0 else call.argument(index - 1, name)


def _widen(machine: Machine, holder: Instance, done: _Set) -> None:
    held = holder.fields[done.field]
    if done.item is None:
        _replace(machine, holder.fields, done.field, done.alike)
    for atom in bare(held) if done.item is not None else ():
        if isinstance(atom, Mapping) and done.item in atom.fields:
            _replace(machine, atom.fields, done.item, done.alike)


def _replace(machine: Machine, fields: dict[str, Value], name: str, alike: bool) -> None:
    if all(isinstance(atom, Const) for atom in bare(fields[name])):
        machine.write(fields, name, join(fields[name], (Opaque(name, alike=alike),)))


def _sets(node: FunctionDef) -> Iterator[_Set]:
    for part in walk(node.body):
        if not isinstance(part, (Assign, AugAssign)):
            continue
        targets = part.targets if isinstance(part, Assign) else [part.target]
        for target in targets:
            holder, item = target, None
            if isinstance(target, Subscript):
                if not isinstance(target.slice, Constant):
                    continue
                holder, item = target.value, str(target.slice.value)
            if isinstance(holder, Attribute) and isinstance(holder.value, Name):
                alike = isinstance(part.value, Constant) and any(part is each for each in node.body)
                yield _Set(holder.value.id, holder.attr, item, alike)
