"""Modules in modules: which of the program's own a network holds."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter.training import Layer
from validate_ddp.interpreter.values import Instance, Opaque, Value, bare

_MOST = 40
"""What is looked at in a network. Not said: deeper in one that is written out, it is layers of torch."""


def modules_of(value: Value) -> tuple[Instance, ...]:
    """The modules of the program's own that a field holds, alone or in a ``ModuleList``, one of each class."""
    found: dict[Any, Instance] = {}
    pending = list(bare(value))
    for _ in range(_MOST):
        atom = pending.pop() if pending else None
        if isinstance(atom, Instance):
            found.setdefault(id(atom.cls), atom)
        elif isinstance(atom, Opaque):
            pending += [inner for part in atom.carries if isinstance(part, Layer) for inner in bare(part.parts)]
    return tuple(found.values())
