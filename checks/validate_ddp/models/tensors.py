"""Methods of tensors through which a gradient does not flow, or does."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts, gradients, metrics
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.rows import method
from validate_ddp.interpreter.values import Opaque, Resource, Value, carried_by


def _cut(machine: Machine, atom: Any, called: Call) -> Value | None:
    """``x.detach()``, ``x.argmax(1)``: no gradient flows on."""
    if not isinstance(atom, Opaque) or not any(isinstance(part, Resource) for part in atom.carries):
        return None
    if called.name in ("detach", "detach_"):
        return gradients.cut((atom,))
    carries = gradients.cut_parts(carried_by((atom, *called.given)))
    return (Opaque(f"{atom.name}.{called.name}()" if atom.name else f"{called.name}()", carries),)


def _clone(machine: Machine, atom: Any, called: Call) -> Value | None:
    """A copy: what happens to it in place does not happen to the original."""
    return (Opaque(atom.name, atom.carries),) if isinstance(atom, Opaque) and gradients.live((atom,)) else None


def _divided(machine: Machine, atom: Any, called: Call) -> Value | None:
    """``loss.div_(world_size)``."""
    if isinstance(atom, Opaque):
        metrics.divided(machine, (atom,), called.value("by"))
    return None


DECLARED = (
    method("div div_ true_divide true_divide_", _divided, parameters="by=other", fact=facts.Division),
    method(" ".join(gradients.CUTTING_METHODS), _cut),
    method("clone", _clone),
)
