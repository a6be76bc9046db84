"""What is looked at only once it meets a model that is trained on several ranks, or a loader.

Most functions and classes that a script imports have no word of distributed training, and are not walked. The training
step may be in one all the same: ``flow = Flow(net)`` of another file, then ``net = DDP(net)``, then ``flow.loss(x)``.
So it is kept how such a thing was made, and it is made in earnest when it, or a method of it, is handed a model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from validate_ddp.interpreter.objects import Dict
from validate_ddp.interpreter.training import Loader, Shell
from validate_ddp.interpreter.values import Class, Function, Instance, Opaque, Symbol, Value, bare
from validate_ddp.source import syntax
from validate_ddp.source.traversal import walk, words_of

if TYPE_CHECKING:
    from validate_ddp.interpreter.call import Call
    from validate_ddp.interpreter.machine import Machine

_MOST = 200
"""So many things made by functions that were not walked are kept in mind; no program seen makes more outside loops."""


class Made:
    """By which function or class of the program, and which call of it, something was made without a walk.

    real: what it is, once that was ``made``.
    """

    __slots__ = ("call", "made", "maker", "real", "thing")

    def __init__(self, thing: Opaque, maker: Function | Symbol, call: Call) -> None:
        self.thing, self.maker, self.call = thing, maker, call
        self.made = False
        self.real: Value = ()


def note(machine: Machine, thing: Opaque, maker: Function | Symbol, call: Call) -> None:
    """Keep in mind how something was made, outside any loop: what is made anew in each turn is no part of a trainer."""
    if machine.loops or len(machine.late) >= _MOST:
        return
    if isinstance(maker, Symbol) or _makes(maker):
        machine.late[id(thing)] = Made(thing, maker, call)


def _makes(function: Function) -> bool:
    """Whether a function ends by giving back something that it made, as one does that chooses between classes."""
    if function.bound is not None or not isinstance(function.node, syntax.FunctionDef):
        return False
    last = function.node.body[-1] if function.node.body else None
    return isinstance(last, syntax.Return) and isinstance(last.value, (syntax.Name, syntax.Call))


def is_handed(machine: Machine, value: Value) -> bool:
    """Whether a loader or a model that is trained on several ranks, wrapped or the one inside, is among the values."""
    return any(
        isinstance(atom, (Shell, Loader)) or any(atom is held for held in machine.wrapped) for atom in bare(value)
    )


def is_handed_code(machine: Machine, value: Value) -> bool:
    """Whether a function or class that can matter is among the values: `factory.register("ppo", lambda: Agent())`."""
    return any(isinstance(atom, (Function, Class)) and is_notable_code(machine, atom) for atom in bare(value))


def is_notable_code(machine: Machine, code: Function | Class) -> bool:
    """Whether a walk of a function or class can meet anything that rules ask about."""
    node = code.node
    words = list(words_of(walk(node))) if isinstance(node, syntax.Lambda) else node.words
    return bool(machine.library.interesting(code.module, words))


def is_holding(machine: Machine, function: Function) -> bool:
    """Whether a function speaks of what holds such a model, or a table of functions that matter: of a field of its
    object, or of a name of the code around it, as ``def estimate_loss():`` does of a script's own loader."""
    words = function.node.words if isinstance(function.node, syntax.FunctionDef) else ()
    holder = function.bound
    if isinstance(holder, Instance):
        held = [holder.fields[word] for word in words if word in holder.fields]
    else:
        held = _around(function, words)
    return any(is_handed(machine, value) or _is_table(machine, value) for value in held)


def _around(function: Function, words: Iterable[str]) -> list[Value]:
    """What the words name outside of the function, where it looks them up."""
    own = {parameter.name for parameter in function.node.args.parameters}
    held: list[Value] = []
    scope = function.scope
    while scope is not None:
        names = scope.names
        found = [word for word in words if word in names and word not in own]
        held += [names[word] for word in found]
        own.update(found)
        scope = scope.parent
    return held


def _is_table(machine: Machine, value: Value) -> bool:
    tables = [atom for atom in bare(value) if isinstance(atom, Dict)]
    return any(is_handed_code(machine, held) for table in tables for held in table.fields.values())
