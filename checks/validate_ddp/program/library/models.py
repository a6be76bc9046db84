"""Models: wrapping, unwrapping, forward, backward, devices, copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from validate_ddp.program.machine import Machine
from validate_ddp.program.values import (
    NONE,
    UNKNOWN,
    WRAPPERS,
    Const,
    Instance,
    Opaque,
    Resource,
    Site,
    Symbol,
    Value,
    bare,
    carried_by,
)

if TYPE_CHECKING:
    from validate_ddp.program.calls import Call

Model = Callable[[Machine, Symbol, "Call"], Value]
_DDP_NAMES = ("DistributedDataParallel", "DistributedDataParallelCPU", "LegacyDistributedDataParallel")
MOVED = ".moved"
"""A field of a model that was put on a device: no attribute has such a name."""
_FSDP_NAMES = ("FullyShardedDataParallel", "FSDP")
_SAME = frozenset(
    """convert_sync_batchnorm convert_syncbn_model deepcopy copy compile script freeze_bn network_to_half
    prepare_model_for_kbit_training optimize_for_inference convert_sync_batchnorm_model get_peft_model""".split()
)


def find(name: str) -> Model | None:
    root, _, _ = name.partition(".")
    last = name.rpartition(".")[2]
    if last in _DDP_NAMES or (last == "DDP" and root in ("torch", "apex")):
        return _wrap("ddp")
    if last in _FSDP_NAMES:
        return _wrap("fsdp")
    if last == "DataParallel" and root in ("torch",):
        return _wrap("dp")
    if root == "torch" and last == "fully_shard":
        return _first
    if root in ("torch", "copy", "apex", "peft") and last in _SAME:
        return _first
    if name == "apex.amp.initialize" or (last == "initialize" and root == "apex"):
        return _amp_initialize
    if root == "torch" and last == "device":
        return _device
    if root == "torch" and last in ("manual_seed", "manual_seed_all", "seed"):
        return _seed
    if root in ("random", "numpy") and last == "seed":
        return _seed
    if last in ("seed_everything", "set_seed", "set_random_seed", "seed_torch", "random_seed"):
        return _seed
    if last in ("no_grad", "inference_mode") and root == "torch":
        return lambda machine, symbol, call: (Resource("context", call.site, {"name": (Const("no_grad"),)}),)
    return None


def _wrap(kind: str) -> Model:
    def wrap(machine: Machine, symbol: Symbol, call: Call) -> Value:
        inner = call.argument(0, "module") or call.argument(0, "model")
        flavour = "apex" if symbol.name.startswith("apex") else "torch"
        fields = {"inner": inner, "flavour": (Const(flavour),)}
        for option in ("device_ids", "find_unused_parameters", "broadcast_buffers"):
            if option in call.keywords:
                fields[option] = call.keywords[option]
        if len(call.args) > 1:
            fields["device_ids"] = call.args[1]
        wrapper = Resource(kind, call.site, fields)
        machine.record("wrap", kind, call.site, wrapper=(wrapper,), **fields)
        if kind == "dp":
            machine.record("data_parallel", symbol.last, call.site, wrapper=(wrapper,), **fields)
        if kind in ("ddp", "fsdp"):
            machine.record("collective", symbol.last, call.site, wrapper=(wrapper,), arguments=inner)
        for atom in bare(fields.get("device_ids", ())):
            if isinstance(atom, Resource) and atom.kind == "list" and kind == "ddp":
                for value in atom.fields.values():
                    machine.record("device", "device_ids", call.site, device=value)
        return (wrapper,)

    return wrap


def _first(machine: Machine, symbol: Symbol, call: Call) -> Value:
    if symbol.last.startswith("convert_sync"):
        for atom in bare(call.argument(0)):
            if isinstance(atom, Resource) and atom.kind == "ddp":
                machine.record("rework", symbol.last, call.site, wrapper=(atom,))
    return call.argument(0) or UNKNOWN


def _amp_initialize(machine: Machine, symbol: Symbol, call: Call) -> Value:
    models, optimizers = call.argument(0, "models"), call.argument(1, "optimizers")
    if not optimizers:
        return models or UNKNOWN
    return (Resource("tuple", call.site, {"0": models, "1": optimizers}),)


def _device(machine: Machine, symbol: Symbol, call: Call) -> Value:
    index = call.argument(1, "index") or call.argument(0, "device")
    machine.record("device", "torch.device", call.site, device=index)
    return (Resource("device", call.site, {"index": index}),)


def _seed(machine: Machine, symbol: Symbol, call: Call) -> Value:
    machine.record("seed", symbol.last, call.site, seed=call.argument(0))
    return NONE


def forward(machine: Machine, atom: Any, call: Call) -> Value:
    """Call a model: the wrapper's forward, or the forward of a module inside or outside it."""
    carried = carried_by(call.given)
    if isinstance(atom, Resource):
        if atom.kind not in (*WRAPPERS, "prepared"):
            return (Opaque("", (*carried, *carried_by((atom,)))[:12]),)
        machine.record("forward", atom.kind, call.site, model=(atom,))
        output = Resource("output", call.site, {"model": (atom,)})
        return (Opaque("output", (output, *carried)[:12]),)
    if isinstance(atom, Instance):
        result: Value = ()
        member, _ = atom.cls.find("forward")
        if member is not None:
            machine.record("forward", "module", call.site, model=(atom,))
            from validate_ddp.program import calls
            from validate_ddp.program.library import attributes

            for function in bare(attributes.bound(member, atom)):
                if hasattr(function, "node") and machine.library.interesting(function.module, function.node[7]):
                    result = calls.call_atom(machine, function, call)
        output = Resource("output", call.site, {"model": (atom,)})
        return (Opaque("output", (output, *carried_by(result), *carried)[:12]),)
    return (Opaque("", carried),)


def wrapped_state(value: Value, seen: set[int] | None = None) -> list[tuple[Site | None, Resource]]:
    """The wrappers whose own state (with the prefix ``module.``) ``value`` is or holds, containers included.

    Each with the place where its state was taken; None for a wrapper held whole.
    """
    found: list[tuple[Site | None, Resource]] = []
    seen = set() if seen is None else seen
    for atom in bare(value):
        if not isinstance(atom, Resource):
            continue
        if atom.kind in ("ddp", "dp"):
            found.append((None, atom))
        elif atom.kind == "state":
            parts = [part for part in bare(atom.get("of")) if isinstance(part, Resource)]
            found.extend((atom.site, part) for part in parts if part.kind in ("ddp", "dp"))
        elif atom.kind in ("dict", "list", "tuple") and id(atom) not in seen:
            seen.add(id(atom))  # a container may hold itself
            for part in atom.fields.values():
                found.extend(wrapped_state(part, seen))
    return found
