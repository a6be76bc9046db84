"""Roles that a name gives to a value which is otherwise unknown, and what decorators make of a function.

What ``names`` guesses becomes a value here, and is marked: no finding that rests on it is an error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from validate_ddp.interpreter import names, vocabulary
from validate_ddp.interpreter.callables import Commands
from validate_ddp.interpreter.training import Launcher
from validate_ddp.interpreter.values import (
    Const,
    Function,
    Opaque,
    Rank,
    RankTest,
    Resource,
    Symbol,
    Value,
    WorldSize,
    bare,
)
from validate_ddp.source.syntax import Attribute, Call, Expression, Name
from validate_ddp.source.traversal import last_name


def suggested(name: str, carries: tuple[Any, ...] = (), alike: bool = False) -> Value:
    """An unknown value called ``name``: a rank or world size where the name says so, marked as a guess."""
    last = name.rpartition(".")[2].lower().lstrip("_")
    return _number(last, alike) or (Opaque(name, carries, alike and not names.OF_A_RANK.matches(last)),)


@cache
def _number(last: str, alike: bool = False) -> Value:
    scope = names.says_rank(last)
    if scope is not None:
        return (Rank(scope, named=last, alike=alike),)
    return (WorldSize(named=True),) if last in names.WORLD_SIZE.words else ()


def called(name: str, is_method: bool = False) -> Value:
    """What an unknown function or method called ``name`` returns, by its name alone; nothing where it says nothing."""
    last = name.lower().lstrip("_")
    truth = hinted(last)
    if isinstance(truth, RankTest):
        return (truth,)
    if last.startswith("get_") and names.GROUP_RANK_GETTER.matches(last):
        return (Rank("group", named=last),)
    of = last.removeprefix("get_")
    if of == last and (last in names.OF_NO_PROCESS.words or (last in names.RANKING.words and not is_method)):
        return ()
    return _number(of)


def hinted(name: str) -> bool | RankTest | None:
    """What an unknown value's name says of its truth in a distributed launch.

    Whether there are several ranks is what the walk presumes, so a flag of that name is true; which of them pass is a
    guess, and marked as one.
    """
    last = name.rpartition(".")[2].lower().lstrip("_")
    if last in names.ADDRESS.words:
        return RankTest("unclear", exact=False, sure=False)
    if last in names.MAIN_PROCESS.words:
        return RankTest("zero", sure=False)
    if last in names.LOCAL_MAIN_PROCESS.words:
        return RankTest("local-zero", sure=False)
    return True if last in names.DISTRIBUTED_FLAG.words else None


def named(name: str, value: Value, written: bool = True) -> Value:
    """``value`` once it has been given ``name``.

    An unknown one takes the role that the name says, and keeps its own name otherwise. A constant called ``rank`` is
    the default for a run that is not distributed: the role joins it, unless it was not ``written`` but worked out, as
    in `world_size = tp * pp * dp`.
    """
    if len(value) == 1 and isinstance(value[0], Rank) and value[0].scope == "group" and not value[0].of:
        return _told_by(name, value[0])
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


def _told_by(name: str, rank: Rank) -> Value:
    """A rank in a group of whatever kind once it has a name: `local_rank = rank % size`."""
    if rank.sure or rank.named:
        return (rank,)
    scope = names.says_rank(name.lower().lstrip("_"))
    return (rank,) if scope is None else (Rank(scope, sure=False),)


FILLED = "filled"
"""The mark of a function to which a decorator may hand what it is not called with."""
BY_NAME = "by-name"
"""The mark of a function whose decorator is taken for one of rank zero on its name alone."""
_TRANSPARENT_CLASS_DECORATORS = ("property", "staticmethod", "classmethod", "cached_property")


def decorated(machine: Any, function: Function, decorators: list[Expression]) -> Value:
    """What a ``def`` binds: the function with marks for the decorators that matter, or what a local one returns."""
    value: Value = (function,)
    for decorator in reversed(decorators):
        called = decorator.func if isinstance(decorator, Call) else decorator
        last = last_name(called)
        if last in _TRANSPARENT_CLASS_DECORATORS or (isinstance(called, Attribute) and last in ("setter", "getter")):
            function.marks |= {last}
        elif last in names.RANK_ZERO_DECORATOR.words:
            value = _kept_apart(machine, function, decorator, value, "rank-zero")
        elif last == "group" and _groups(machine, called):
            value = (Commands(machine.site(), value),)
        elif last in ("cache", "lru_cache"):
            function.marks |= {"cached"}
        elif last in ("no_grad", "inference_mode"):
            function.marks |= {"no_grad"}
        elif last in names.LOCAL_ZERO_DECORATOR.words:
            value = _kept_apart(machine, function, decorator, value, "local-zero")
        else:
            value = _applied(machine, decorator, value) if _is_of_program(machine, called) else value
            if isinstance(called, (Name, Attribute)) and _fills_arguments(machine, called):
                function.marks |= {FILLED}
    return value


def _is_of_program(machine: Any, called: Expression) -> bool:
    """Whether a decorator may be the program's own: a name, or a method of one of its objects, ``@bus.on(EPOCH)``."""
    if isinstance(called, Attribute):
        return any(isinstance(atom, Function) for atom in bare(machine.evaluate(called)))
    return isinstance(called, Name)


def _fills_arguments(machine: Any, decorator: Expression) -> bool:
    """Whether a decorator may call its function with arguments from the command line or a file, as hydra's does."""
    return any(
        isinstance(atom, Opaque)
        or (isinstance(atom, Symbol) and atom.name.partition(".")[0] not in vocabulary.PASSING_ON)
        for atom in bare(machine.evaluate(decorator))
    )


def _groups(machine: Any, decorator: Expression) -> bool:
    """Whether it is click's, or that of one of its groups: what it decorates runs one of several commands."""
    if isinstance(decorator, Attribute) and any(isinstance(a, Commands) for a in machine.evaluate(decorator.value)):
        return True
    found = bare(machine.evaluate(decorator))
    return any(isinstance(atom, Symbol) and atom.name.endswith("click.group") for atom in found)


def _kept_apart(machine: Any, function: Function, decorator: Expression, value: Value, mark: str) -> Value:
    """A decorator called like those that keep a function to rank zero: one of the program is judged by its body."""
    node = decorator.func if isinstance(decorator, Call) else decorator
    called = bare(machine.evaluate(node))
    if called and all(isinstance(atom, Function) for atom in called):
        return _applied(machine, decorator, value)
    holders = bare(machine.evaluate(node.value)) if isinstance(node, Attribute) else called
    known = holders and all(_is_of_launcher(atom) for atom in holders)
    function.marks |= {mark} if known else {mark, BY_NAME}
    return value


def _is_of_launcher(atom: Any) -> bool:
    if isinstance(atom, Resource):
        return isinstance(atom, Launcher)
    return isinstance(atom, Symbol) and atom.name.partition(".")[0] in vocabulary.LAUNCHERS


def _applied(machine: Any, decorator: Expression, value: Value) -> Value:
    """The result of a decorator that is a function of the program; the function itself for any other."""
    for atom in bare(machine.evaluate(decorator)):
        if isinstance(atom, Symbol) or not isinstance(atom, Function):
            continue
        returned = machine.call(atom, value)
        if any(isinstance(result, Function) for result in bare(returned)):
            return tuple(result for result in bare(returned) if isinstance(result, Function))
    return value
