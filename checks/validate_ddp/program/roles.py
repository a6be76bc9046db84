"""Roles that a name gives to a value which is otherwise unknown, and what decorators make of a function."""

from __future__ import annotations

from typing import Any

from validate_ddp.program import vocabulary
from validate_ddp.program.values import Const, Function, Opaque, Rank, Symbol, Value, WorldSize, bare


def suggested(name: str, carries: tuple[Any, ...] = (), alike: bool = False) -> Value:
    """An unknown value called ``name``: a rank or world size where the name says so."""
    last = name.rpartition(".")[2].lower().lstrip("_")
    if last in vocabulary.GLOBAL_RANK:
        return (Rank("global", sure=False),)
    if last in vocabulary.LOCAL_RANK:
        return (Rank("local", sure=False),)
    if last in vocabulary.GROUP_RANK:
        return (Rank("group", sure=False),)
    if last in vocabulary.WORLD_SIZE:
        return (WorldSize(),)
    return (Opaque(name, carries, alike and vocabulary.OF_A_RANK.isdisjoint(last.split("_"))),)


def named(name: str, value: Value, written: bool = True) -> Value:
    """``value`` once it has been given ``name``.

    An unknown one takes the role that the name says, and keeps its own name otherwise. A constant called ``rank`` is
    the default for a run that is not distributed: the role joins it, unless it was not ``written`` but worked out, as
    in `world_size = tp * pp * dp`.
    """
    if len(value) != 1 or not isinstance(value[0], (Opaque, Const)):
        return value
    role = suggested(name, alike=isinstance(value[0], Opaque) and value[0].alike)
    if isinstance(role[0], Opaque):
        return role if isinstance(value[0], Opaque) and not value[0].name and not value[0].carries else value
    if isinstance(value[0], Opaque):
        return role
    if not written:
        return value
    default = (0, 1) if isinstance(role[0], WorldSize) else (0, -1, None)
    is_default = not isinstance(value[0].value, (str, bool)) and value[0].value in default
    return (*value, *role) if is_default else value


_TRANSPARENT_CLASS_DECORATORS = ("property", "staticmethod", "classmethod", "cached_property")


def decorated(machine: Any, function: Function, decorators: list[Any]) -> Value:
    """What a ``def`` binds: the function with marks for the decorators that matter, or what a local one returns."""
    value: Value = (function,)
    for decorator in reversed(decorators):
        called = decorator[1] if decorator[0] == "call" else decorator
        last = called[-1] if called[0] == "name" else called[2] if called[0] == "attr" else ""
        if last in _TRANSPARENT_CLASS_DECORATORS or (called[0] == "attr" and last in ("setter", "getter")):
            function.marks |= {last}
        elif last in vocabulary.RANK_ZERO_DECORATORS:
            function.marks |= {"rank-zero"}
        elif last in ("cache", "lru_cache"):
            function.marks |= {"cached"}
        elif last in ("no_grad", "inference_mode"):
            function.marks |= {"no_grad"}
        elif last in ("on_local_main_process", "local_main_process_only"):
            function.marks |= {"local-zero"}
        elif called[0] == "name":
            value = _applied(machine, decorator, value)
    return value


def _applied(machine: Any, decorator: list[Any], value: Value) -> Value:
    """The result of a decorator that is a function of the program; the function itself for any other."""
    for atom in bare(machine.evaluate(decorator)):
        if isinstance(atom, Symbol) or not isinstance(atom, Function):
            continue
        returned = machine.call(atom, value)
        if any(isinstance(result, Function) for result in bare(returned)):
            return tuple(result for result in bare(returned) if isinstance(result, Function))
    return value
