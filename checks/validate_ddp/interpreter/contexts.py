"""What ``with`` does: contexts that mark the code in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from validate_ddp.interpreter import calls, facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names import FIRST, LOCK
from validate_ddp.interpreter.objects import Context, Generator
from validate_ddp.interpreter.values import Const, Instance, Opaque, Value, bare

_FLAGS = {
    "no_grad": Flag.NO_GRAD,
    "inference_mode": Flag.NO_GRAD,
    "no_sync": Flag.NO_SYNC,
    "accumulate": Flag.ACCUMULATE,
    "main_process_first": Flag.PROCESS_FIRST,
    "local_main_process_first": Flag.PROCESS_FIRST,
    "rank_zero_first": Flag.PROCESS_FIRST,
}
_OF_CONTEXTS = {**_FLAGS, "join": Flag.JOIN}
"""By the names that our models give to contexts; others mark nothing."""


def _perhaps(flag: Flag) -> Flag:
    return Flag.PERHAPS_NO_SYNC if flag is Flag.NO_SYNC else flag


@contextmanager
def entering(machine: Machine, value: Value) -> Iterator[Value]:
    """Enter the context ``value``; gives what ``as`` binds."""
    flags: list[Flag] = []
    held: Value = value
    for atom in bare(value):
        if isinstance(atom, Context):
            flag = _OF_CONTEXTS.get(atom.manager)
            if flag is not None:
                flags.append(flag if len(value) == 1 else _perhaps(flag))
        elif isinstance(atom, Generator):
            held = atom.fields.get("*", ())
            function = atom.site.function  # `with torch_distributed_zero_first(rank):`
            if FIRST.matches(function) or _lets_one_go_first(machine, atom.site.path, function):
                flags.append(Flag.IN_TURN)
        elif isinstance(atom, Opaque):
            last = atom.name.removesuffix("()").rpartition(".")[2]
            if last in _FLAGS:
                flags.append(_perhaps(_FLAGS[last]))
            elif FIRST.matches(last):
                flags.append(Flag.PROCESS_FIRST)
            elif LOCK.matches(last):
                flags.append(Flag.LOCKED)
        elif isinstance(atom, Instance):
            for name in ("__enter__", "__exit__"):
                member, _ = atom.cls.find(name)
                if member is not None:
                    result = calls.call_method(machine, atom, _method(machine, name))
                    held = result if name == "__enter__" else held
    if Flag.NO_GRAD in flags and machine.loops:
        machine.record(facts.NoGrad("no_grad"), machine.site())
    with machine.flagged(*flags):
        yield held


def _lets_one_go_first(machine: Machine, path: str, function: str) -> bool:
    """Whether a context of the program has a barrier for the others before its body, and one for the first after."""
    waiting = {
        fact.who
        for fact in machine.facts
        if isinstance(fact, facts.Collective) and fact.site.function == function and fact.site.path == path
    }
    return {"nonzero", "zero"} <= waiting or {"local-nonzero", "local-zero"} <= waiting


def _method(machine: Machine, name: str) -> Call:
    return Call(name, [] if name == "__enter__" else [(Const(None),)] * 3, {}, machine.site())
