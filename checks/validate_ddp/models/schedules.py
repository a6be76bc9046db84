"""Learning rate schedules of libraries, whose spans may be computed from lengths."""

from __future__ import annotations

from validate_ddp.interpreter import facts, lengths
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.rows import api
from validate_ddp.interpreter.training import Scheduler
from validate_ddp.interpreter.values import Function, Opaque, Symbol, Value, bare, join


def _is_schedule(name: str) -> bool:
    """Whether it is a learning rate schedule of a library."""
    root, _, _ = name.partition(".")
    last = name.rpartition(".")[2]
    if root == "torch":
        return ".lr_scheduler." in name and last[:1].isupper()
    return root in ("transformers", "diffusers") and (last == "get_scheduler" or "_schedule" in last)


def _schedule(machine: Machine, symbol: Symbol, call: Call) -> Value:
    scheduler = Scheduler(call.site)
    if symbol.last in ("LambdaLR", "MultiplicativeLR"):
        told = [_told_by(machine, value) for value in (*call.args, *call.keywords.values())]
        lengths.note(machine, symbol.last, scheduler, told, call.site)
    known = len(machine.facts)
    lengths.note_schedule(machine, symbol.last, scheduler, call)
    if len(machine.facts) == known:
        machine.record(facts.Scheduler(symbol.last, steps=(), lengths=(), scheduler=(scheduler,)), call.site)
    return (scheduler,)


def _told_by(machine: Machine, value: Value) -> Value:
    """The factor that a function of the step gives, which may be computed from a length around it."""
    found: Value = ()
    for atom in bare(value):
        if isinstance(atom, Function):
            found = join(found, machine.call(atom, (Opaque("step"),)))
    return found


DECLARED = (api(model=_schedule, where=_is_schedule),)
