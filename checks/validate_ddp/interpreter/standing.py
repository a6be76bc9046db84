"""What stands for a call that is not walked any more: what earlier calls gave, made of what this one is given."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.marks import Agreed, Reduced, Rooted, Row, Summed, Trimmed
from validate_ddp.interpreter.metrics import REDUCED, is_of_batches, with_mark
from validate_ddp.interpreter.objects import Batch, Dict, Fields, List, Output, Tuple
from validate_ddp.interpreter.sameness import are_alike
from validate_ddp.interpreter.values import UNKNOWN, Const, Opaque, Rank, Value, carried_by, join, merged

_OF_DATA = (Batch, Output, Agreed)
_KEPT = (*_OF_DATA, Reduced, Rooted, Row, Summed, Trimmed)
_DEEPEST = 3
"""Containers within each other that are gone through: a list may hold itself."""


def of_call(value: Value, call: Call) -> Value:
    """What earlier calls returned, for one that is not walked: what is handed in now may be in its result."""
    if are_alike(*call.args, *call.keywords.values()):
        return value
    given = carried_by(call.given)
    data = tuple(part for part in given if isinstance(part, _KEPT))
    if is_of_batches(data):
        value = _of_what_is_given(value, data)
    if not all(isinstance(atom, (Const, Opaque)) for atom in value):
        return value
    return join(value, (Opaque("", tuple(part for part in given if isinstance(part, Rank))),))


def _of_what_is_given(value: Value, given: tuple[Any, ...], depth: int = 0) -> Value:
    """Where earlier calls made something of their batches, this one makes it of the batches that it is given: a helper
    that moves both training's and validation's to a device mixes neither with the other. One that calls itself, and has
    given nothing yet, gives what it is given."""
    found: Value = ()
    for atom in value:
        if isinstance(atom, (Tuple, List, Dict)) and type(atom) is not Fields and depth < _DEEPEST:
            fields = {name: _of_what_is_given(held, given, depth + 1) for name, held in atom.fields.items()}
            found = join(found, (type(atom)(atom.site, fields),))
        elif isinstance(atom, Opaque) and is_of_batches(atom.carries):
            marks = tuple(part for part in atom.carries if not isinstance(part, _OF_DATA))
            now = merged(*marks, *given)
            found = join(found, (Opaque(atom.name, with_mark(REDUCED, now) if REDUCED in marks else now),))
        else:
            found = join(found, (atom,))
    return (Opaque("", given),) if value is UNKNOWN else found
