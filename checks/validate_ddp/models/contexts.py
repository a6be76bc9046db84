"""What ``with`` does: contexts that mark the code in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Context, Generator
from validate_ddp.interpreter.values import Const, Instance, Opaque, Value, bare

if TYPE_CHECKING:
    from validate_ddp.interpreter.calls import Call

_FLAGS = {
    "no_grad": "no_grad",
    "inference_mode": "no_grad",
    "no_sync": "no_sync",
    "accumulate": "accumulate",
    "main_process_first": "process_first",
    "local_main_process_first": "process_first",
}

_PERHAPS = "perhaps_no_sync"
"""Of ``model.no_sync() if accumulating else nullcontext()``."""


@contextmanager
def entering(machine: Machine, value: Value) -> Iterator[Value]:
    """Enter the context ``value``; gives what ``as`` binds."""
    flags = []
    held: Value = value
    for atom in bare(value):
        if isinstance(atom, Context):
            name = atom.manager
            flags.append(_FLAGS.get(name, name) if len(value) == 1 or name != "no_sync" else _PERHAPS)
        elif isinstance(atom, Generator):
            held = atom.fields.get("*", ())
            function = atom.site.function  # `with torch_distributed_zero_first(rank):`
            if function.endswith("_first") or _lets_one_go_first(machine, atom.site.path, function):
                flags.append("in_turn")
        elif isinstance(atom, Opaque):
            last = atom.name.removesuffix("()").rpartition(".")[2]
            if last in _FLAGS:
                flags.append(_FLAGS[last] if last != "no_sync" else _PERHAPS)
            elif last.endswith("_first"):
                flags.append("process_first")
            elif "lock" in last.lower():
                flags.append("locked")
        elif isinstance(atom, Instance):
            from validate_ddp.interpreter import calls

            for name in ("__enter__", "__exit__"):
                member, _ = atom.cls.find(name)
                if member is not None:
                    result = calls.call_method(machine, atom, _method(machine, name))
                    held = result if name == "__enter__" else held
    if "no_grad" in flags and machine.loops:
        machine.record("no_grad", "no_grad", machine.site())
    with machine.flagged(*flags):
        yield held


def _lets_one_go_first(machine: Machine, path: str, function: str) -> bool:
    """Whether a context of the program has a barrier for the others before its body, and one for the first after."""
    waiting = {
        fact.who
        for fact in machine.facts
        if fact.kind == "collective" and fact.site.function == function and fact.site.path == path
    }
    return {"nonzero", "zero"} <= waiting or {"local-nonzero", "local-zero"} <= waiting


def _method(machine: Machine, name: str) -> Call:
    from validate_ddp.interpreter.calls import Call

    return Call(name, [] if name == "__enter__" else [(Const(None),)] * 3, {}, machine.site())
