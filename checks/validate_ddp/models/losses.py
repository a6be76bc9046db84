"""Losses that leave targets of one class out of their mean: padding, pixels without a label, tokens that are given."""

from __future__ import annotations

from validate_ddp.interpreter import shares
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.marks import Ignored
from validate_ddp.interpreter.rows import api
from validate_ddp.interpreter.values import Opaque, Symbol, Value, constant, merged
from validate_ddp.models.unknown import unresolved

_OPTIONS = "size_average ignore_index reduce reduction"


def _is_mean(call: Call) -> bool:
    """Whether it is one number for the whole batch, its mean."""
    plain = not (call.value("size_average") or call.value("reduce") or call.open)
    return plain and (not call.value("reduction") or constant(call.value("reduction")) == "mean")


def _criterion(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``nn.CrossEntropyLoss(ignore_index=0)``, which is called later."""
    made = unresolved(machine, symbol, call)
    if not _is_mean(call):
        return made
    mark = Ignored(call.site, by=call.value("ignore_index"))
    return tuple(Opaque(atom.name, merged(mark, *atom.carries)) if isinstance(atom, Opaque) else atom for atom in made)


def _loss(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``F.cross_entropy(logits, targets, ignore_index=0)``."""
    made = unresolved(machine, symbol, call)
    if not _is_mean(call):
        return made
    by = call.value("ignore_index")
    return tuple(shares.ignoring(machine, call, atom, by) if isinstance(atom, Opaque) else atom for atom in made)


DECLARED = (
    api("torch.nn.CrossEntropyLoss torch.nn.NLLLoss", _criterion, parameters=f"weight {_OPTIONS}"),
    api(
        "torch.nn.functional.cross_entropy torch.nn.functional.nll_loss",
        _loss,
        parameters=f"input target weight {_OPTIONS}",
    ),
)
