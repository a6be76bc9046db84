"""``functools.partial``: a call of which some arguments are there already."""

from __future__ import annotations

from validate_ddp.interpreter import calls
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.callables import Partial
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.rows import api, method
from validate_ddp.interpreter.values import UNKNOWN, Function, Opaque, Symbol, Value, bare, carried_by, join


def _made(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A function of the program keeps its arguments itself, so that whoever looks for functions finds it."""
    before = Call("", call.args[1:], {name: held for name, held in call.keywords.items() if name != "func"}, call.site)
    before.open = call.open
    result: Value = ()
    for atom in bare(call.argument(0, "func")):
        if isinstance(atom, Function):
            bound = atom.bind(atom.bound)
            bound.preset = before if atom.preset is None else before.behind(atom.preset)
            result = join(result, (bound,))
        elif isinstance(atom, Opaque):
            result = join(result, (Opaque(atom.name, carried_by((atom, *before.given)), atom.alike),))
        else:
            result = join(result, (Partial(call.site, (atom,), before),))
    return result or UNKNOWN


def _called(machine: Machine, partial: Partial, call: Call) -> Value:
    result: Value = ()
    for inner in bare(partial.function):
        result = join(result, calls.call_atom(machine, inner, call.behind(partial.preset)))
    return result or UNKNOWN


DECLARED = (
    api("functools.partial functools.partialmethod", _made),
    method("__call__", _called, of=Partial),
)
