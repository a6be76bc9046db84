"""Random numbers: seeds, what a training step draws, and random transforms of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from validate_ddp.program import gradients
from validate_ddp.program.machine import Machine
from validate_ddp.program.values import NONE, Const, Opaque, Resource, Symbol, Value, bare, carried_by, constant

if TYPE_CHECKING:
    from validate_ddp.program.calls import Call

Model = Callable[[Machine, Symbol, "Call"], Value]

SEEDING = frozenset("seed_everything set_seed set_random_seed seed_torch random_seed".split())
_DRAWS = frozenset("randn randn_like rand rand_like randint randint_like normal".split())
_TRANSFORMS = frozenset(
    """RandomResizedCrop RandomCrop RandomHorizontalFlip RandomAffine RandomRotation RandomErasing ColorJitter
    AutoAugment RandAugment TrivialAugmentWide""".split()
)


def find(name: str) -> Model | None:
    root, _, _ = name.partition(".")
    last = name.rpartition(".")[2]
    if root == "torch" and last in ("manual_seed", "manual_seed_all", "seed"):
        return _seed
    if root in ("random", "numpy") and last == "seed":
        return _seed
    if last in SEEDING:
        return _seed
    if root == "torch" and last in _DRAWS and name.count(".") == 1:
        return _draw
    if root == "torchvision" and last in _TRANSFORMS:
        return _transform
    return None


def _seed(machine: Machine, symbol: Symbol, call: Call) -> Value:
    library = "torch.cuda" if symbol.name.startswith("torch.cuda.") else symbol.name.partition(".")[0]
    values = {"seed": call.argument(0), "library": (Const(library),)}
    if "device_specific" in call.keywords or len(call.args) > 1:
        values["device_specific"] = call.argument(1, "device_specific")
    machine.record("seed", symbol.last, call.site, **values)
    return NONE


def _draw(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """Noise, time steps and latents: what is drawn outside of loops initialises something."""
    if machine.loops and "no_grad" not in machine.flags and not _is_single(call):
        machine.record("draw", symbol.last, call.site, generator=call.argument(-1, "generator"))
    value: Value = (Opaque(f"torch.{symbol.last}()", carried_by(call.given)),)
    return gradients.cut(value) if machine.gathers else value


def _is_single(call: Call) -> bool:
    """Whether one number is drawn, as for a decision: ranks had better agree on that."""
    sizes = [call.keywords["size"]] if "size" in call.keywords else call.args[-1:]
    for atom in bare(sizes[0]) if sizes else ():
        if isinstance(atom, Resource) and atom.kind in ("tuple", "list"):
            return all(constant(part) == 1 for part in atom.fields.values())
    return all(constant(value) == 1 for value in call.args)


def _transform(machine: Machine, symbol: Symbol, call: Call) -> Value:
    machine.record("draw", symbol.last, call.site, transform=(Const(True),))
    return (Opaque(f"{symbol.name}()", carried_by(call.given)),)
