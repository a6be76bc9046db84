"""Functions of the program's own for autograd: ``class Gather(torch.autograd.Function)``."""

from __future__ import annotations

from validate_ddp.interpreter import facts, gradients
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.rows import ClassMethod
from validate_ddp.interpreter.values import Class, Function, Opaque, Value, bare, carried_by
from validate_ddp.models import uses
from validate_ddp.source.traversal import last_name, walk


def _applied(machine: Machine, cls: Class, call: Call) -> Value:
    """``Gather.apply(x)``: its forward runs, but the gradient is what its backward says.

    So the result is as good as the arguments, whatever collectives did in between, and those leave the arguments alone.
    """
    member, _ = cls.find("forward")
    own_context = cls.find("setup_context")[0] is not None
    if uses.is_dropped(call) and _goes_on_without(machine, cls, call):
        machine.record(facts.Unapplied(cls.node.name), call.site)
    for atom in bare(member or ()):
        if isinstance(atom, Function) and machine.library.interesting(atom.module, atom.node.words):
            given = [_apart(value) for value in call.args]
            with machine.flagged(Flag.NO_GRAD):
                machine.call(atom, *given if own_context else ((Opaque("ctx"),), *given))
    return (Opaque("apply()", carried_by(call.given)),)


def _goes_on_without(machine: Machine, cls: Class, call: Call) -> bool:
    """Whether it has a backward, which nothing reaches now: what went in is used on as it was."""
    if cls.find("backward")[0] is None or not any(uses.is_used_after(machine, call, n) for n in uses.names_given(call)):
        return False
    return not any(last_name(node) in _IN_PLACE for node in walk(cls.node.body))


def _apart(value: Value) -> Value:
    """A value of which nothing that happens to it is seen elsewhere, and through which no gradient flows."""
    return tuple(
        Opaque(atom.name, gradients.cut_parts(atom.carries)) if isinstance(atom, Opaque) else atom
        for atom in bare(value)
    )


_IN_PLACE = frozenset({"mark_dirty"})
"""What a forward calls that changes its argument, which then hangs on the function."""

DECLARED = (ClassMethod("apply", _applied),)
