"""Where gradients flow: from a trained model's output on, and not through ``detach``, ``no_grad`` or a collective.

A model's output carries a Resource ``output``; what a collective that autograd does not see made of one carries a
Resource ``gathered`` instead: ``of``, the outputs whose gradient ends there, and what became of it: ``restored`` (the
own shard was put back), ``reduced`` (not gathered but summed), ``divided`` (by the collective itself), ``mixed`` (met
a tensor with a gradient other than in a sum). A ``term`` stands for a gathered that is a summand without any gradient
of its own; a ``rescaled`` tells that one was multiplied with, or divided by, the world size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from validate_ddp.interpreter.values import TRUE, Const, Opaque, Resource, Value, WorldSize, bare, constant, reaching
from validate_ddp.source.traversal import last_name

if TYPE_CHECKING:
    from validate_ddp.interpreter.calls import Call
    from validate_ddp.interpreter.machine import Machine

_TRAINED = ("ddp", "fsdp", "engine", "prepared")

CUTTING_ATTRIBUTES = frozenset("data shape device dtype ndim requires_grad grad grad_fn is_cuda layout".split())
CUTTING_METHODS = (
    "detach detach_ item tolist numpy argmax argsort size dim numel nelement long int bool eq ne gt lt ge le nonzero "
    "new_zeros new_ones new_empty new_full new_tensor get_device isnan isinf isfinite stride"
).split()
CUTTING_FUNCTIONS = frozenset(
    """zeros_like ones_like empty_like full_like rand_like randn_like randint_like argmax argsort eq ne gt lt ge le
    isnan isinf isfinite is_tensor numel nonzero bincount histc searchsorted bucketize multinomial tensor zeros ones
    empty full arange eye equal allclose randperm randn rand randint""".split()
)
JOINING_FUNCTIONS = frozenset("cat concat concatenate stack vstack hstack row_stack where".split())


def is_off(machine: Machine) -> bool:
    """Whether the code being walked runs under ``no_grad``."""
    return "no_grad" in machine.flags


def is_trained(machine: Machine, wrapper: Resource, call: Call) -> Value:
    """True for the forward of a model that is being trained: a wrapper's, with gradients on, and not a teacher's."""
    if wrapper.kind not in _TRAINED or is_off(machine):
        return ()
    name = last_name(call.node.func).lower() if call.node else ""
    return () if any(word in name for word in _FROZEN) else TRUE


_FROZEN = ("teacher", "ema", "momentum", "target", "frozen", "ref_", "reference", "key_enc", "encoder_k", "_k")
_KEEPING = ("queue", "bank", "memory", "momentum", "buffer", "center")
"""In the names of functions that keep gathered features for later steps, where they have no gradient by design."""


def live(value: Value) -> list[Any]:
    """The outputs of trained models whose gradient flows through ``value``."""
    return [
        part for part in reaching(value) if isinstance(part, Resource) and part.kind == "output" and part.get("live")
    ]


def marks(value: Value) -> list[Resource]:
    """The gathered tensors that went into ``value``."""
    return [part for part in reaching(value) if isinstance(part, Resource) and part.kind == "gathered"]


def terms(value: Value) -> list[Any]:
    """The gathered tensors that are summands of ``value`` without a gradient."""
    found = [part for part in reaching(value) if isinstance(part, Resource) and part.kind == "term"]
    return [part.get("of")[0] for part in found]


def is_rescaled(value: Value, mark: Resource, how: str) -> bool:
    """Whether what was gathered has been ``scaled`` or ``divided`` by the world size on its way to ``value``."""
    return any(
        isinstance(part, Resource)
        and part.kind == "rescaled"
        and part.get("of")[0] is mark
        and constant(part.get("how")) == how
        for part in reaching(value)
    )


_FLOWING = ("output", "gathered", "term", "rescaled")


def _flows(part: Any) -> bool:
    return isinstance(part, Resource) and part.kind in _FLOWING


def cut_parts(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is carried, without what a gradient would flow to."""
    return tuple(part for part in parts if not _flows(part)) if any(map(_flows, parts)) else parts


def cut(value: Value) -> Value:
    """``value`` as ``detach`` gives it."""
    if not any(isinstance(atom, Opaque) and any(map(_flows, atom.carries)) for atom in bare(value)):
        return value
    return tuple(
        Opaque(atom.name, cut_parts(atom.carries)) if isinstance(atom, Opaque) else atom for atom in bare(value)
    )


def collect(machine: Machine, call: Call, name: str, tensor: Value, reduces: bool = False) -> tuple[Any, ...]:
    """What the result of a collective that autograd does not see carries of ``tensor``."""
    sources = [] if is_off(machine) or _is_kept(machine) else live(tensor)
    kept = cut_parts(reaching(tensor))
    if not sources:
        return kept
    mark = Resource("gathered", call.site, {"of": tuple(sources)})
    if reduces:
        mark.fields["reduced"] = TRUE
        if constant(call.argument(1, "reduction")) == "mean":  # Accelerate divides where autograd sees it
            mark.fields["divided"] = TRUE
    machine.gathers.append(mark)
    machine.record("gather", name, call.site, result=(mark,))
    return (mark, *sources, *kept) if reduces else (mark, *kept)


def _is_kept(machine: Machine) -> bool:
    names = [frame.function.name.lower() for frame in machine.frames if frame.function is not None]
    return any(word in name for name in names for word in _KEEPING)


def receive(machine: Machine, destination: Value, carried: tuple[Any, ...]) -> None:
    """Write what a collective gathered into the list or tensor given for it."""
    for atom in bare(destination):
        if isinstance(atom, Resource) and atom.kind == "list":
            for key in list(atom.fields):
                machine.write(atom.fields, key, (Opaque("gathered", carried),))
            machine.write(atom.fields, "*", (Opaque("gathered", carried),))
        elif isinstance(atom, Opaque) and atom.name:  # a tensor made for it; the nameless one stands for all unknown
            atom.carries = carried


def reduce_in_place(machine: Machine, call: Call, name: str) -> None:
    """``all_reduce(x)``: x keeps its gradient, as autograd does not see the others' share."""
    for atom in bare(call.argument(0, "tensor")):
        if isinstance(atom, Opaque) and live((atom,)):
            atom.carries = collect(machine, call, name, (atom,), reduces=True)[:12]


def restore(receiver: Value, value: Value) -> None:
    """Note that the own shard is put back among the gathered ones: its gradient is there again."""
    outputs = live(value)
    for mark in marks(receiver):
        if any(output in mark.get("of") for output in outputs):
            mark.fields["restored"] = TRUE


def arithmetic(machine: Machine, operator: str, left: Value, right: Value) -> Value | None:
    """What an operation on gathered tensors does to them; its result where that is a sum with a dead term."""
    for value, other in ((left, right), (right, left)):
        found = marks(value)
        if not found:
            continue
        if any(isinstance(atom, Resource) and atom.kind == "list" for atom in bare(other)):
            restore(value, other)
            continue
        if operator in ("Mult", "Div") and any(isinstance(atom, WorldSize) for atom in bare(other)):
            how: Value = (Const("scaled" if operator == "Mult" else "divided"),)
            tokens = tuple(Resource("rescaled", machine.site(), {"of": (mark,), "how": how}) for mark in found)
            return (Opaque("", (*tokens, *reaching(value))[:12]),)
        outputs, there = live(other), marks(other)
        met = [mark for mark in found if mark not in there and any(output in mark.get("of") for output in outputs)]
        if operator == "Add":
            dead = [mark for mark in met if not any(output in mark.get("of") for output in live(value))]
            if dead:
                kept = tuple(part for part in reaching(value) if part not in dead)
                gone = tuple(Resource("term", machine.site(), {"of": (mark,)}) for mark in dead)
                return (Opaque("", (*gone, *kept, *reaching(other))[:12]),)
        elif operator in ("Mult", "MatMult", "Sub"):
            for mark in met:
                mark.fields["mixed"] = TRUE
    return None
