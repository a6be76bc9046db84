"""Methods of library objects and of unknown ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from validate_ddp.interpreter import facts, gradients, roles, sameness
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import (
    Container,
    Context,
    Options,
    Super,
    one_more,
)
from validate_ddp.interpreter.training import (
    FSDP,
    Engine,
    Handler,
    Launcher,
    Loaded,
    Loader,
    Mesh,
    Scheduler,
    Shell,
    State,
    Writer,
)
from validate_ddp.interpreter.values import (
    NONE,
    UNKNOWN,
    Class,
    Const,
    Function,
    Instance,
    OnRanks,
    Opaque,
    Rank,
    Resource,
    Symbol,
    Value,
    WorldSize,
    bare,
    carried_by,
    constant,
    join,
    reaching,
)
from validate_ddp.models import (
    attributes,
    command_line,
    configuration,
    containers,
    distributed,
    files,
    frameworks,
    iteration,
    metrics,
    networks,
    optimizers,
    randomness,
    sharded,
    tensors,
)

if TYPE_CHECKING:
    from validate_ddp.interpreter.calls import Call

_SELF = frozenset(
    """to cuda cpu train eval half float double bfloat16 requires_grad_ apply share_memory type xpu npu
    share_memory_ contiguous detach clone""".split()
)
_PARSED = frozenset({"parse_args", "parse_known_args", "parse_args_into_dataclasses"})


def call(machine: Machine, resource: Resource, called: Call) -> Value:
    """Call a method of an object of a library."""
    name = called.name
    if isinstance(resource, Super):
        return _super(machine, resource, called)
    if isinstance(resource, Launcher):
        result = frameworks.launcher_method(machine, resource, called)
        if result is not None:
            return result
    if isinstance(resource, (Container, Options)):
        result = containers.call(machine, resource, called)
        if result is not None:
            return result
    if isinstance(resource, Mesh):
        result = distributed.mesh_method(resource, called)
        if result is not None:
            return result
    if name == "set_epoch":
        return _set_epoch(machine, (resource,), called)
    if isinstance(resource, Scheduler) and name == "step":
        resource.stepped = one_more(resource.stepped)
        if called.args:
            metrics.report(machine, called, called.args[0])
    if isinstance(resource, Shell):
        return _wrapper(machine, resource, called)
    if isinstance(resource, Handler) and name == "setLevel":
        level = called.argument(0, "level")
        if any(isinstance(atom, OnRanks) for atom in level) or any(isinstance(a, Rank) for a in reaching(level)):
            resource.quiet = (Const(True),)  # the other ranks log errors only
        return NONE
    if isinstance(resource, Writer):
        if name.startswith("add_") and machine.who == "all":
            resource.used = one_more(resource.used)
        metrics.report(machine, called)
        return (Opaque(name, ()),)
    if name in resource.fields:
        from validate_ddp.interpreter import calls

        result = ()
        for target in bare(resource.fields[name]):
            result = join(result, calls.call_atom(machine, target, called))
        return result or UNKNOWN
    return call_unknown(machine, resource, called)


def _super(machine: Machine, resource: Super, called: Call) -> Value:
    from validate_ddp.interpreter import calls

    instance, owner = resource.instance, resource.owner
    lineage = instance.cls.lineage()
    after = lineage[lineage.index(owner) + 1 :] if owner in lineage else []
    for base in after:
        if isinstance(base, Class) and called.name in base.members:
            result: Value = ()
            for target in bare(attributes.bound(base.members[called.name], instance)):
                result = join(result, calls.call_atom(machine, target, called))
            return result or UNKNOWN
        if isinstance(base, Symbol) and called.name == "__init__":
            from validate_ddp import models

            made = models.base_object(machine, base, called)
            if made is not None and instance.base is not None:
                instance.base.fields.update(made.fields)  # it is the same object, told of once
            else:
                instance.base = made or instance.base
            if "transform" in called.keywords:  # of torchvision's data sets
                machine.write(instance.fields, "transform", called.keywords["transform"])
            return NONE
    return call_unknown(machine, instance, called)


def _set_epoch(machine: Machine, target: Value, called: Call) -> Value:
    machine.record(facts.SetEpoch("set_epoch", target=target, epoch=called.argument(0, "epoch")), called.site)
    return NONE


def _wrapper(machine: Machine, resource: Shell, called: Call) -> Value:
    name = called.name
    if isinstance(resource, (FSDP, Engine)):
        sharded.wrapper_method(machine, resource, called)
    if name in ("to", "cuda"):
        _moved(machine, called)
        machine.record(facts.Rework(name, wrapper=(resource,), device=called.argument(0, "device")), called.site)
        return (resource,)
    if name in _SELF:
        _note_mode(machine, called)
        return (resource,)
    if name == "module":  # `ddp.module(x)`: the inner module's forward
        from validate_ddp.interpreter import calls

        result: Value = ()
        for inner in bare(resource.inner):
            if isinstance(inner, Opaque):
                result = join(result, networks.unknown_forward(machine, inner, called))
            else:
                result = join(result, calls.call_atom(machine, inner, called))
        return result or UNKNOWN
    if name == "state_dict":
        return (State(called.site, of=(resource,)),)
    if name == "load_state_dict":
        return _load_state(machine, (resource,), called)
    if name in ("forward", "__call__"):
        return networks.forward(machine, resource, called)
    if name in ("no_sync", "join"):
        return (Context(called.site, name),)
    if isinstance(resource, Engine) and name == "backward":
        machine.record(facts.Backward("engine", loss=called.argument(0)), called.site)
        return NONE
    if name in ("parameters", "named_parameters", "modules", "children"):
        return (Opaque(name, (resource,)),)
    if name in ("step", "zero_grad"):
        return _UNKNOWN_METHODS[name](machine, resource, called) or UNKNOWN
    return (Opaque(name + "()", carried_by((resource, *called.given))),)


def _note_mode(machine: Machine, called: Call) -> None:
    """Record that a model is put into training or evaluation mode."""
    if called.name in ("train", "eval"):
        evaluates = called.name == "eval" or constant(called.argument(0, "mode")) is False
        machine.record(facts.Mode("eval" if evaluates else "train"), called.site)


def _moved(machine: Machine, called: Call) -> None:
    device = called.argument(0, "device")
    if not called.args and not called.keywords and called.name == "cuda":
        device = (Const("cuda"),)
    for atom in bare(device):
        if isinstance(atom, Const) and atom.value == "cuda":
            machine.record(facts.Device(called.name, device=device), called.site)
            return
        carries = atom.carries if isinstance(atom, Opaque) and atom.name.startswith("cuda") else (atom,)
        if any(isinstance(part, Rank) for part in carries):
            machine.record(facts.Device(called.name, device=device), called.site)
            return


def _load_state(machine: Machine, target: Value, called: Call) -> Value:
    state = called.argument(0, "state_dict")
    for part in reaching(state):
        if isinstance(part, Loaded):
            part.consumed = one_more(part.consumed)
    assign = called.argument(-1, "assign")
    machine.record(facts.LoadState("load_state_dict", target=target, state=state, assign=assign), called.site)
    return UNKNOWN


def call_unknown(machine: Machine, atom: Any, called: Call) -> Value:
    """Call a method of something unknown, or something unknown itself."""
    name = called.name
    if machine.wrapped and not called.receiver and any(atom is held for held in machine.wrapped):
        return networks.unknown_forward(machine, atom, called)
    handler = _UNKNOWN_METHODS.get(name)
    if handler is not None and (called.receiver or name in ("backward",)):
        result = handler(machine, atom, called)
        if result is not None:
            return result
    if name in _SELF and called.receiver:
        if name in ("to", "cuda"):
            _moved(machine, called)
        _note_mode(machine, called)
        if name in ("train", "eval") and isinstance(atom, Instance):
            mode = (Const(False),) if name == "eval" else called.argument(0, "mode") or (Const(True),)
            machine.write(atom.fields, "training", mode)
        elif name in ("to", "cuda") and isinstance(atom, Instance):
            machine.write(atom.fields, networks.MOVED, (Const(True),))
        return (atom,)
    if name in _PARSED:
        return command_line.parsed(machine, atom, called)
    if name == "update" and isinstance(atom, Instance):
        configuration.override(machine, (atom,), called.given)  # `vars(config).update(...)`
    if name in ("get", "get_nowait") and not called.args:
        return iteration.element((atom,))  # a queue
    full = f"{atom.name}.{name}" if isinstance(atom, Opaque) and atom.name else name
    hint = distributed.rank_in(atom, called) or roles.called(name, is_method=True)
    if name == "device_count":
        hint = (WorldSize(local=True),)
    if hint:
        if isinstance(hint[0], Rank) and hint[0].scope == "group":
            machine.record(facts.GroupRank(name), called.site)
        return hint
    if isinstance(atom, Instance) and not called.receiver:
        return networks.forward(machine, atom, called)
    from validate_ddp import models

    models.called_back(machine, called, "")
    carries = carried_by((atom, *called.given))
    if name in ("items", "keys", "values"):  # the results of an evaluation, not its batches
        carries = tuple(part for part in carries if not isinstance(part, Loader))
    if carries:
        if metrics.may_reduce(name) and not (name == "gather" and len(called.args) > 1):  # that one is a tensor's
            carries = metrics.reduced(called, carries)
        metrics.report(machine, called)
    if called.keywords and not randomness.AUGMENTING.isdisjoint(called.keywords):
        carries = randomness.noted(called, carries)
    return (Opaque(full + "()", carries, sameness.of_method(name, atom, called.given)),)


def _backward(machine: Machine, atom: Any, called: Call) -> Value | None:
    loss: Value = (atom,)
    machine.record(facts.Backward("backward", loss=loss), called.site)
    return NONE


def _state_dict(machine: Machine, atom: Any, called: Call) -> Value | None:
    return (State(called.site, of=(atom,)),)


def _load_state_dict(machine: Machine, atom: Any, called: Call) -> Value | None:
    return _load_state(machine, (atom,), called)


def _epoch(machine: Machine, atom: Any, called: Call) -> Value | None:
    return _set_epoch(machine, (atom,), called)


def _open_path(machine: Machine, atom: Any, called: Call) -> Value | None:
    if called.args and constant(called.args[0]) not in ("r", "rb", "w", "wb", "a", "ab", "wt", "x", "r+", "a+", "w+"):
        return None
    return files.opened(machine, (atom,), called.argument(0, "mode"), called)


def _write_text(machine: Machine, atom: Any, called: Call) -> Value | None:
    machine.record(facts.Save(called.name, path=(atom,), role="file"), called.site)
    return NONE


def _save_pretrained(machine: Machine, atom: Any, called: Call) -> Value | None:
    if constant(called.argument(-1, "is_main_process")) is ... and "is_main_process" in called.keywords:
        return NONE
    name = atom.name.lower() if isinstance(atom, Opaque) else ""
    role: facts.Role = (
        "file" if any(word in name for word in ("token", "processor", "config", "extractor")) else "checkpoint"
    )
    path = called.argument(0, "save_directory")
    machine.record(facts.Save(called.name, object=(atom,), path=path, role=role), called.site)
    return NONE


def _export(machine: Machine, atom: Any, called: Call) -> Value | None:
    machine.record(facts.Save(called.name, path=called.argument(1), role="checkpoint"), called.site)
    return NONE


def _format(machine: Machine, atom: Any, called: Call) -> Value | None:
    if isinstance(atom, (Const, Opaque)):
        name = str(atom.value) if isinstance(atom, Const) else atom.name
        return (Opaque(name, carried_by((atom, *called.given)), sameness.is_alike((atom, *called.given))),)
    return None


def _bind_process(machine: Machine, atom: Any, called: Call) -> Value | None:
    """``context.Process(target=..., args=...)`` and ``ctx.spawn``: contexts of multiprocessing."""
    if "target" in called.keywords:
        return distributed._process(machine, Symbol("multiprocessing.Process"), called)
    return None


def _barrier(machine: Machine, atom: Any, called: Call) -> Value | None:
    if isinstance(atom, Opaque) and atom.name.rpartition(".")[2] in ("accelerator", "fabric", "strategy"):
        machine.record(facts.Collective(called.name, arguments=called.given), called.site)
        return UNKNOWN
    return None


def _submit(machine: Machine, atom: Any, called: Call) -> Value | None:
    """``executor.submit(trainer)``: the object is called on the cluster."""
    from validate_ddp.interpreter import calls

    for target in bare(called.argument(0)):
        if isinstance(target, (Instance, Function)):
            calls.spawned(machine, (target,), called.args[1:], called.site)
    return UNKNOWN


_UNKNOWN_METHODS = {
    "add_argument": command_line.declared,
    **dict.fromkeys(gradients.CUTTING_METHODS, tensors.cut),
    "clone": tensors.clone,
    "manual_seed": randomness.generator_seeded,
    "backward": _backward,
    "state_dict": _state_dict,
    "load_state_dict": _load_state_dict,
    "set_epoch": _epoch,
    "open": _open_path,
    "write_text": _write_text,
    "write_bytes": _write_text,
    "save_pretrained": _save_pretrained,
    "format": _format,
    "joinpath": _format,
    "export_to_onnx": _export,
    "export_onnx": _export,
    "Process": _bind_process,
    "wait_for_everyone": _barrier,
    "barrier": _barrier,
    "submit": _submit,
    "consolidate_state_dict": sharded.consolidate,
    "step": optimizers.step,
    "zero_grad": optimizers.zero_grad,
    "append": optimizers.holding,
    "extend": optimizers.holding,
    "insert": optimizers.holding,
    "update": optimizers.holding,
    "add_module": optimizers.holding,
    "register_module": optimizers.holding,
}
