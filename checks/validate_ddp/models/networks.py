"""Models: wrapping, unwrapping, forward, backward, devices, copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from validate_ddp.interpreter import facts, gradients
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Batch, Container, Context, Dict, List, Output, Tuple
from validate_ddp.interpreter.training import DDP, DP, FSDP, Device, Shell, State, Wrapper
from validate_ddp.interpreter.values import (
    UNKNOWN,
    Const,
    Function,
    Instance,
    Opaque,
    Resource,
    Site,
    Symbol,
    Value,
    bare,
    carried_by,
    merged,
)

if TYPE_CHECKING:
    from validate_ddp.interpreter.calls import Call

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
        return _wrap(DDP)
    if last in _FSDP_NAMES:
        return _wrap(FSDP)
    if last == "DataParallel" and root in ("torch",):
        return _wrap(DP)
    if root == "torch" and last == "fully_shard":
        return _fully_shard
    if root in ("torch", "copy", "apex", "peft") and last in _SAME:
        return _first
    if name == "apex.amp.initialize" or (last == "initialize" and root == "apex"):
        return _amp_initialize
    if root == "torch" and last == "device":
        return _device
    if last in ("no_grad", "inference_mode") and root == "torch":
        return lambda machine, symbol, call: (Context(call.site, "no_grad"),)
    if name.startswith("torch.distributed.algorithms.") and last == "Join":
        return lambda machine, symbol, call: (Context(call.site, "join"),)
    if root == "torch" and last in gradients.CUTTING_FUNCTIONS:
        return _cut
    if root == "torch" and last in gradients.JOINING_FUNCTIONS:
        return _joined
    return None


def _cut(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A function whose result has no gradient: ``torch.zeros_like(x)``."""
    return (Opaque(symbol.name + "()", gradients.cut_parts(carried_by(call.given))),)


def _joined(machine: Machine, symbol: Symbol, call: Call) -> Value:
    if machine.gathers:
        gradients.restore(call.given, call.given)
    return (Opaque(symbol.name + "()", carried_by(call.given)),)


def _wrap(around: type[Wrapper]) -> Model:
    def make(machine: Machine, symbol: Symbol, call: Call) -> Value:
        inner = call.argument(0, "module") or call.argument(0, "model")
        flavour = "apex" if symbol.name.startswith("apex") else "torch"
        options: dict[str, Value] = {}
        for option in ("device_ids", "device_id", "find_unused_parameters", "broadcast_buffers"):
            if option in call.keywords:
                options[option] = call.keywords[option]
        if len(call.args) > 1:
            options["device_ids"] = call.args[1]
        wrapper = around(call.site, **{"inner": inner, "flavour": (Const(flavour),), **options})
        wrap = facts.Wrap(around.called, wrapper=(wrapper,), inner=inner, flavour=flavour, **options)
        machine.record(wrap, call.site)
        machine.wrapped += [atom for atom in bare(inner) if isinstance(atom, Opaque)]
        if around is DP:
            machine.record(facts.DataParallel(symbol.last, **wrap.given), call.site)
        if around in (DDP, FSDP):
            machine.record(facts.Collective(symbol.last, wrapper=(wrapper,), arguments=inner), call.site)
        for atom in bare(options.get("device_ids", ())):
            if isinstance(atom, List) and around is DDP:
                for value in atom.fields.values():
                    machine.record(facts.Device("device_ids", device=value), call.site)
        return (wrapper,)

    return make


def _first(machine: Machine, symbol: Symbol, call: Call) -> Value:
    if symbol.last.startswith("convert_sync"):
        for atom in bare(call.argument(0)):
            if isinstance(atom, DDP):
                machine.record(facts.Rework(symbol.last, wrapper=(atom,)), call.site)
    return call.argument(0) or UNKNOWN


def _fully_shard(machine: Machine, symbol: Symbol, call: Call) -> Value:
    module = call.argument(0, "module") or UNKNOWN
    machine.record(facts.Shard(symbol.last, model=module), call.site)
    machine.wrapped += [atom for atom in bare(module) if isinstance(atom, Opaque)]
    return module


def _amp_initialize(machine: Machine, symbol: Symbol, call: Call) -> Value:
    models, optimizers = call.argument(0, "models"), call.argument(1, "optimizers")
    if not optimizers:
        return models or UNKNOWN
    return (Tuple(call.site, {"0": models, "1": optimizers}),)


def _device(machine: Machine, symbol: Symbol, call: Call) -> Value:
    index = call.argument(1, "index") or call.argument(0, "device")
    machine.record(facts.Device("torch.device", device=index), call.site)
    return (Device(call.site, index=index),)


def forward(machine: Machine, atom: Any, call: Call) -> Value:
    """Call a model: the wrapper's forward, or the forward of a module inside or outside it."""
    carried = carried_by(call.given)
    if isinstance(atom, Resource):
        if not isinstance(atom, Shell):
            return (Opaque("", merged(*carried, *carried_by((atom,)))),)
        machine.record(facts.Forward(atom.called, model=(atom,), inputs=_batches(carried)), call.site)
        if gradients.is_off(machine):
            carried = gradients.cut_parts(carried)
        output = Output(call.site, model=(atom,), live=gradients.is_trained(machine, atom, call))
        return (Opaque("output", merged(output, *carried)),)
    if isinstance(atom, Instance):
        result: Value = ()
        member, _ = atom.cls.find("forward")
        if member is not None:
            machine.record(facts.Forward("module", model=(atom,), inputs=_batches(carried)), call.site)
            from validate_ddp.interpreter import calls
            from validate_ddp.models import attributes

            for function in bare(attributes.bound(member, atom)):
                if not isinstance(function, Function):
                    continue
                if "no_grad" in function.marks:
                    carried = gradients.cut_parts(carried)
                if machine.gathers or machine.library.interesting(function.module, function.node.words):
                    result = calls.call_atom(machine, function, call)
        output = Output(call.site, model=(atom,))
        if machine.gathers:
            return _parted(result, output, carried)
        return (Opaque("output", merged(output, *carried_by(result), *carried)),)
    return (Opaque("", carried),)


def unknown_forward(machine: Machine, atom: Opaque, call: Call) -> Value:
    """Call a model of an unknown class which some wrapper holds, past the wrapper."""
    carried = carried_by(call.given)
    machine.record(facts.Forward("module", model=(atom,), inputs=_batches(carried)), call.site)
    output = Output(call.site, model=(atom,))
    return (Opaque("output", merged(output, *carried)),)


def _batches(carried: tuple[Any, ...]) -> tuple[Batch, ...]:
    return tuple(part for part in carried if isinstance(part, Batch))


def _parted(result: Value, output: Output, carried: tuple[Any, ...]) -> Value:
    """What a forward returns, part by part: what is logged beside a loss is not part of the loss."""
    for atom in bare(result):
        if isinstance(atom, (Dict, Tuple)) and len(result) == 1:
            parts: dict[str, Value] = {
                key: (Opaque("output", merged(output, *carried_by(value), *carried)),)
                for key, value in atom.fields.items()
            }
            return (type(atom)(atom.site, parts),)
    return (Opaque("output", merged(output, *carried_by(result), *carried)),)


def wrapped_state(value: Value, seen: set[int] | None = None) -> list[tuple[Site | None, Wrapper]]:
    """The wrappers whose own state (with the prefix ``module.``) ``value`` is or holds, containers included.

    Each with the place where its state was taken; None for a wrapper held whole.
    """
    found: list[tuple[Site | None, Wrapper]] = []
    seen = set() if seen is None else seen
    for atom in bare(value):
        if isinstance(atom, (DDP, DP)):
            found.append((None, atom))
        elif isinstance(atom, State):
            found.extend((atom.site, part) for part in bare(atom.of) if isinstance(part, (DDP, DP)))
        elif isinstance(atom, Container) and id(atom) not in seen:
            seen.add(id(atom))  # a container may hold itself
            for part in atom.fields.values():
                found.extend(wrapped_state(part, seen))
    return found
