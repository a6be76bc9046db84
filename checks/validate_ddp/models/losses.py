"""Losses that are a mean over a batch, and those that leave targets of one class out of it, as padding."""

from __future__ import annotations

from validate_ddp.interpreter import shares
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.marks import Averaged, Ignored
from validate_ddp.interpreter.rows import api
from validate_ddp.interpreter.values import Opaque, Symbol, Value, constant, merged
from validate_ddp.models.unknown import unresolved

_LEAVING_OUT = ("CrossEntropyLoss", "NLLLoss")
_OTHERS = "L1Loss MSELoss SmoothL1Loss HuberLoss KLDivLoss BCELoss BCEWithLogitsLoss"
_OPTIONS = "size_average ignore_index reduce reduction"


def _is_mean(call: Call) -> bool:
    """Whether it is one number for the whole batch, its mean."""
    plain = not (call.value("size_average") or call.value("reduce")) and (not call.open or call.value("ignore_index"))
    return bool(plain) and (not call.value("reduction") or constant(call.value("reduction")) == "mean")


def _criterion(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``nn.CrossEntropyLoss(ignore_index=0)``, ``nn.L1Loss()``, which are called later."""
    made = unresolved(machine, symbol, call)
    if not _is_mean(call):
        return made
    leaves_out = symbol.last in _LEAVING_OUT
    mark = Ignored(call.site, by=call.value("ignore_index")) if leaves_out else Averaged(call.site)
    return tuple(Opaque(atom.name, merged(mark, *atom.carries)) if isinstance(atom, Opaque) else atom for atom in made)


def _loss(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``F.cross_entropy(logits, targets, ignore_index=0)``."""
    made = unresolved(machine, symbol, call)
    if not _is_mean(call):
        return made
    by = call.value("ignore_index")
    return tuple(shares.ignoring(machine, call, atom, by) if isinstance(atom, Opaque) else atom for atom in made)


DECLARED = (
    api(_OTHERS, _criterion, within="torch.nn", parameters="* size_average reduce reduction"),
    api("torch.nn.CrossEntropyLoss torch.nn.NLLLoss", _criterion, parameters=f"weight {_OPTIONS}"),
    api(
        "torch.nn.functional.cross_entropy torch.nn.functional.nll_loss",
        _loss,
        parameters=f"input target weight {_OPTIONS}",
    ),
)
