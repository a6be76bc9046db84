"""Models: wrapping, unwrapping, forward, backward, devices, copies."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import attributes, calls, facts, gradients
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.marks import Apportioned
from validate_ddp.interpreter.objects import Batch, Container, Context, Dict, List, Output, Tuple
from validate_ddp.interpreter.rows import Model, api
from validate_ddp.interpreter.training import DDP, DP, FSDP, Device, Shell, State, Wrapper
from validate_ddp.interpreter.values import (
    NONE,
    TRUE,
    UNKNOWN,
    Const,
    Function,
    Instance,
    Opaque,
    Rank,
    Resource,
    Site,
    Symbol,
    Value,
    bare,
    carried_by,
    constant,
    merged,
)
from validate_ddp.interpreter.worth import is_of_loss, leads_on
from validate_ddp.models import inside

MOVED = ".moved"
"""A field of a model that was put on a device: no attribute has such a name."""
_SAME = frozenset(
    """convert_sync_batchnorm convert_syncbn_model deepcopy copy compile script freeze_bn network_to_half
    prepare_model_for_kbit_training optimize_for_inference convert_sync_batchnorm_model get_peft_model""".split()
)


def is_model(atom: Any) -> bool:
    """Whether it is surely a module with parameters: of a class of the program with a base in a library, or torch's."""
    if isinstance(atom, Instance):
        return any(isinstance(base, Symbol) for base in atom.cls.lineage())
    if not isinstance(atom, Opaque) or not atom.name.startswith("torch.nn."):
        return False
    made = atom.name.rpartition(".")[2]
    return made[:1].isupper() and made.endswith("()") and not made.endswith("Loss()")


def entered(machine: Machine, atom: Any, call: Call) -> Value:
    """A method that makes a context, known by the method's name."""
    return (Context(call.site, call.name),)


def _context(name: str) -> Model:
    return lambda machine, symbol, call: (Context(call.site, name),)


def _cut(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A function whose result has no gradient: ``torch.zeros_like(x)``."""
    return (Opaque(symbol.name + "()", gradients.cut_parts(carried_by(call.given))),)


def _joined(machine: Machine, symbol: Symbol, call: Call) -> Value:
    if machine.gathers:
        gradients.restore(call.given, call.given)
    return (Opaque(symbol.name + "()", carried_by(call.given)),)


OPTIONS = ("device_ids", "device_id", "find_unused_parameters", "broadcast_buffers", "sharding_strategy")


def _wrap(around: type[Wrapper]) -> Model:
    def make(machine: Machine, symbol: Symbol, call: Call) -> Value:
        inner = call.value("module")
        flavour = symbol.name.partition(".")[0]
        options: dict[str, Value] = {}
        for option in OPTIONS:
            given = call.value(option) if option in call.parameters else ()
            if given:
                options[option] = given
        wrapper = around(call.site, **{"inner": inner, "flavour": (Const(flavour),), **options})
        group = call.value("process_group") if "process_group" in call.parameters else ()
        wrap = facts.Wrap(
            around.called, wrapper=(wrapper,), inner=inner, flavour=flavour, process_group=group, **options
        )
        machine.record(wrap, call.site)
        machine.wrapped += [atom for atom in bare(inner) if isinstance(atom, (Opaque, Instance))]
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
        for atom in bare(call.value("module")):
            if isinstance(atom, DDP):
                machine.record(facts.Rework(symbol.last, wrapper=(atom,)), call.site)
    return call.value("module") or UNKNOWN


def _fully_shard(machine: Machine, symbol: Symbol, call: Call) -> Value:
    module = call.value("module") or UNKNOWN
    machine.record(facts.Shard(symbol.last, model=module, mesh=call.value("mesh")), call.site)
    machine.wrapped += [atom for atom in bare(module) if isinstance(atom, (Opaque, Instance))]
    return module


def _amp_initialize(machine: Machine, symbol: Symbol, call: Call) -> Value:
    models, optimizers = call.value("models"), call.value("optimizers")
    if not optimizers:
        return models or UNKNOWN
    return (Tuple(call.site, {"0": models, "1": optimizers}),)


def _device(machine: Machine, symbol: Symbol, call: Call) -> Value:
    index = call.value("index") or call.value("device")
    machine.record(facts.Device("torch.device", device=index), call.site)
    return (Device(call.site, index=index),)


def forward(machine: Machine, atom: Any, call: Call) -> Value:
    """Call a model: the wrapper's forward, or the forward of a module inside or outside it."""
    carried = carried_by(call.given)
    if isinstance(atom, Resource):
        if not isinstance(atom, Shell):
            return (Opaque("", merged(*carried, *carried_by((atom,)))),)
        machine.record(facts.Forward(atom.called, model=(atom,), **_inputs(carried)), call.site)
        divided = _led_inside(machine, atom, call)
        if gradients.is_off(machine):
            carried = gradients.cut_parts(carried)
        output = Output(call.site, model=(atom,), live=gradients.is_trained(machine, atom, call))
        return (Opaque("output", merged(output, *divided, *carried)),)
    if isinstance(atom, Instance):
        result: Value = ()
        divided = []
        member, _ = atom.cls.find("forward")
        if member is not None:
            machine.record(facts.Forward("module", model=(atom,), **_inputs(carried)), call.site)
            for function in bare(attributes.bound(member, atom)):
                if not isinstance(function, Function):
                    continue
                if "no_grad" in function.marks:
                    carried = gradients.cut_parts(carried)
                words = function.node.words
                whole = machine.gathers or machine.library.interesting(function.module, words)
                if whole or is_of_loss(machine, call, words):
                    result = calls.call_atom(machine, function, call)
                elif leads_on(machine, function):  # what the modules below do; they are part of this one's output
                    divided = _dividing(calls.call_atom(machine, function, call))
        output = Output(call.site, model=(atom,))
        if machine.gathers:
            return _parted(result, output, carried)
        return (Opaque("output", merged(output, *divided, *carried_by(result), *carried)),)
    return (Opaque("", carried),)


def _led_inside(machine: Machine, shell: Shell, call: Call) -> list[Apportioned]:
    """Walk the ``forward`` of the program's own model that ``shell`` leads to, for what it does: draws, collectives.

    Of what it returns, only by what a loss was divided is looked at: the output of the wrapper stands for the rest.
    """
    divided: list[Apportioned] = []
    for inner in bare(shell.inner):
        if isinstance(inner, Shell):
            divided += _led_inside(machine, inner, call)
            continue
        if not gradients.is_off(machine):
            inside.draws(machine, inner)
        if isinstance(inner, Instance):
            for function in bare(attributes.bound(inner.cls.find("forward")[0] or (), inner)):
                if not isinstance(function, Function):
                    continue
                if leads_on(machine, function) or is_of_loss(machine, call, function.node.words):
                    divided += _dividing(calls.call_atom(machine, function, call))
    return divided


def _dividing(returned: Value) -> list[Apportioned]:
    return [part for part in carried_by(returned) if isinstance(part, Apportioned)]


def unknown_forward(machine: Machine, atom: Opaque, call: Call) -> Value:
    """Call a model of an unknown class which some wrapper holds, past the wrapper."""
    carried = carried_by(call.given)
    machine.record(facts.Forward("module", model=(atom,), **_inputs(carried)), call.site)
    output = Output(call.site, model=(atom,))
    return (Opaque("output", merged(output, *carried)),)


def _inputs(carried: tuple[Any, ...]) -> dict[str, Any]:
    batches = tuple(part for part in carried if isinstance(part, Batch))
    return {"inputs": batches, "own": any(isinstance(part, Rank) for part in carried)}


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


def _take_off(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``consume_prefix_in_state_dict_if_present(state, "module.")`` changes the state that it is given."""
    prefix = constant(call.value("prefix"))
    for atom in bare(call.value("state_dict")):
        if isinstance(atom, State) and (not isinstance(prefix, str) or "module." in prefix):
            machine.write(atom.fields, "plain", TRUE)
    return NONE


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
            found.extend((atom.site, part) for part in bare(atom.of) if isinstance(part, (DDP, DP)) and not atom.plain)
        elif isinstance(atom, Container) and id(atom) not in seen:
            seen.add(id(atom))  # a container may hold itself
            for part in atom.fields.values():
                found.extend(wrapped_state(part, seen))
    return found


_INNER = "module=module=model device_ids"
_OF_DDP = f"""{_INNER} output_device dim broadcast_buffers init_sync process_group bucket_cap_mb
    find_unused_parameters"""
_OF_FSDP = """module=module=model process_group sharding_strategy cpu_offload auto_wrap_policy backward_prefetch
    mixed_precision ignored_modules param_init_fn device_id"""

DECLARED = (
    api(
        "DistributedDataParallel DistributedDataParallelCPU LegacyDistributedDataParallel",
        _wrap(DDP),
        within="*",
        parameters=_OF_DDP,
        fact=(facts.Wrap, facts.Collective),
    ),
    api("DDP", _wrap(DDP), within="torch", parameters=_OF_DDP, fact=(facts.Wrap, facts.Collective)),
    api(
        "DDP DistributedDataParallel",
        _wrap(DDP),
        within="apex",
        parameters="module=module=model",
        fact=(facts.Wrap, facts.Collective),
    ),
    api(
        "FullyShardedDataParallel FSDP",
        _wrap(FSDP),
        within="*",
        parameters=_OF_FSDP,
        fact=(facts.Wrap, facts.Collective),
    ),
    api("DataParallel", _wrap(DP), within="torch", parameters=_INNER, fact=(facts.Wrap, facts.DataParallel)),
    api("fully_shard", _fully_shard, within="torch", parameters="module * mesh", fact=facts.Shard),
    api(_SAME, _first, within="torch copy apex peft", parameters="module=", fact=facts.Rework),
    api("initialize", _amp_initialize, within="apex", parameters="models optimizers"),
    api("device", _device, within="torch", parameters="device index", fact=facts.Device),
    api("no_grad inference_mode", _context("no_grad"), within="torch"),
    api("consume_prefix_in_state_dict_if_present", _take_off, within="torch", parameters="state_dict prefix"),
    api("Join", _context("join"), within="torch.distributed.algorithms"),
    api(gradients.CUTTING_FUNCTIONS, _cut, within="torch"),
    api(gradients.JOINING_FUNCTIONS, _joined, within="torch"),
)
