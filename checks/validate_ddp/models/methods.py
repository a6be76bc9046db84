"""Methods of library objects and of unknown ones."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import (
    attributes,
    calls,
    configuration,
    facts,
    gradients,
    iteration,
    metrics,
    roles,
    sameness,
    shares,
)
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names import LAUNCHER
from validate_ddp.interpreter.names_of_training import RANDOM_OPTION, REDUCING, TOKENIZER
from validate_ddp.interpreter.objects import Asked, Super, one_more
from validate_ddp.interpreter.rows import method
from validate_ddp.interpreter.training import (
    Engine,
    File,
    Handler,
    Host,
    Loaded,
    Loader,
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
    command_line,
    files,
    handed,
    hosting,
    meshes,
    networks,
    randomness,
    tensors,
    unknown,
)

_SELF = frozenset(
    """to cuda cpu train eval half float double bfloat16 requires_grad_ apply share_memory type xpu npu
    share_memory_ contiguous detach clone""".split()
)
_MOST_PLACES = 3
"""Of writing to one event writer, so many are told."""
_PARSED = frozenset({"parse_args", "parse_known_args", "parse_args_into_dataclasses"})


def _schedule(machine: Machine, scheduler: Scheduler, called: Call) -> None:
    scheduler.stepped = one_more(scheduler.stepped)
    machine.record(facts.ScheduleStep("step", scheduler=(scheduler,)), called.site)
    if called.args:
        metrics.report(machine, called, called.args[0])
        metrics.rooted(machine, "step", called.args[0])


def _set_level(machine: Machine, handler: Handler, called: Call) -> Value:
    level = called.value("level")
    if any(isinstance(atom, OnRanks) for atom in level) or any(isinstance(a, Rank) for a in reaching(level)):
        handler.quiet = (Const(True),)  # the other ranks log errors only
    return NONE


def _writer(machine: Machine, writer: Writer, called: Call) -> Value | None:
    if called.name == "set_epoch":
        return None
    if called.name.startswith("add_") and machine.who == "all":
        writer.used = one_more(writer.used)
        if len(writer.at) < _MOST_PLACES:
            writer.at = (*writer.at, Asked(called.site))
    metrics.report(machine, called)
    return (Opaque(called.name, ()),)


def _super(machine: Machine, resource: Super, called: Call) -> Value:
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
            made = machine.registry.base_object(machine, base, called)
            if made is not None and instance.base is not None:
                instance.base.fields.update(made.fields)  # it is the same object, told of once
            else:
                instance.base = made or instance.base
            _prepared(machine, instance, base, called)
            if "transform" in called.keywords:  # of torchvision's data sets
                machine.write(instance.fields, "transform", called.keywords["transform"])
            return NONE
    if isinstance(instance.base, Host) and machine.registry.answers(instance.base, called.name):
        return machine.registry.call_resource(machine, instance.base, called)
    return call_unknown(machine, instance, called)


def _prepared(machine: Machine, instance: Instance, base: Symbol, called: Call) -> None:
    """What the constructor of a data set of PyG calls where the files are not there yet."""
    if base.name.startswith("torch_geometric.") and base.last in ("Dataset", "InMemoryDataset"):
        with machine.guarded("all", called.site, exact=False, apart=True):
            for name in ("download", "process"):
                hosting.hook(machine, instance, name, called.site)


def _moved_shell(machine: Machine, shell: Shell, called: Call) -> Value:
    _moved(machine, called)
    machine.record(facts.Rework(called.name, wrapper=(shell,), device=called.argument(0, "device")), called.site)
    return (shell,)


def _same_shell(machine: Machine, shell: Shell, called: Call) -> Value:
    _note_mode(machine, called)
    return (shell,)


def _forward_inside(machine: Machine, shell: Shell, called: Call) -> Value:
    """``ddp.module(x)``: the inner module's forward."""
    result: Value = ()
    for inner in bare(shell.inner):
        if isinstance(inner, Opaque):
            result = join(result, networks.unknown_forward(machine, inner, called))
        else:
            result = join(result, calls.call_atom(machine, inner, called))
    return result or UNKNOWN


def _parts(machine: Machine, shell: Shell, called: Call) -> Value:
    return (Opaque(called.name, (shell,)),)


def _other(machine: Machine, resource: Shell, called: Call) -> Value:
    name = called.name
    handler = machine.registry.method(name) if name in ("set_epoch", "step", "zero_grad") else None
    if handler is not None:
        return handler(machine, resource, called) or UNKNOWN
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


def _load_state_dict(machine: Machine, atom: Any, called: Call) -> Value:
    state = called.value("state_dict")
    for part in reaching(state):
        if isinstance(part, Loaded):
            part.consumed = one_more(part.consumed)
    assign = called.value("assign")
    machine.record(facts.LoadState("load_state_dict", target=(atom,), state=state, assign=assign), called.site)
    return UNKNOWN


def call_unknown(machine: Machine, atom: Any, called: Call) -> Value:
    """Call a method of something unknown, or something unknown itself."""
    name = called.name
    made = handed.method_of(machine, atom, called) if machine.late else ()
    if made:
        return made
    if machine.wrapped and _is_wrapped(machine, atom, called):
        return networks.unknown_forward(machine, atom, called)
    handler = machine.registry.method(name)
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
    told = _told_by_key(atom, called) if name == "get" else ()
    if told:
        return told
    full = f"{atom.name}.{name}" if isinstance(atom, Opaque) and atom.name else name
    hint = meshes.rank_in(atom, called) or roles.called(name, is_method=True)
    if name == "device_count":
        hint = (WorldSize(local=True),)
    if hint:
        if isinstance(hint[0], Rank) and hint[0].scope == "group":
            machine.record(facts.GroupRank(name), called.site)
        return hint
    if isinstance(atom, Instance) and not called.receiver:
        return networks.forward(machine, atom, called)
    unknown.called_back(machine, called, "")
    carries = carried_by((atom, *called.given))
    if name in ("items", "keys", "values"):  # the results of an evaluation, not its batches
        carries = tuple(part for part in carries if not isinstance(part, Loader))
    if carries:
        if REDUCING.matches(name) and not tensors.is_of_one(called):
            carries = metrics.reduced(called, carries)
        metrics.report(machine, called)
    if called.keywords and not RANDOM_OPTION.words.isdisjoint(called.keywords):
        carries = randomness.noted(called, carries)
    given = Opaque(full + "()", carries, sameness.of_method(name, atom, called.given))
    value: Value = (shares.called_on(machine, atom, called, given) if carries else given,)
    return gradients.past_wrapper(machine, atom, called, value) if machine.wrapped else value


def _told_by_key(atom: Any, called: Call) -> Value:
    """``config.get("local_rank")`` of something unknown: what the key says, as of ``config["local_rank"]``."""
    key = constant(called.argument(0, "key"))
    if not isinstance(atom, Opaque) or not isinstance(key, str):
        return ()
    found = roles.suggested(key, atom.carries, sameness.is_alike((atom,)))
    return () if isinstance(found[0], Opaque) and roles.hinted(key) is None else found


def _is_wrapped(machine: Machine, atom: Any, called: Call) -> bool:
    """Whether a model of unknown class is called that some wrapper holds: it itself, by its name or as a field of its
    holder, not a method of it."""
    if type(atom) is not Opaque or any(atom is holder for holder in bare(called.receiver)):
        return False
    return any(atom is held for held in machine.wrapped)


def _open_path(machine: Machine, atom: Any, called: Call) -> Value | None:
    if called.args and constant(called.args[0]) not in ("r", "rb", "w", "wb", "a", "ab", "wt", "x", "r+", "a+", "w+"):
        return None
    return files.opened(machine, (atom,), called.value("mode"), called)


def _save_pretrained(machine: Machine, atom: Any, called: Call) -> Value | None:
    if constant(called.value("is_main_process")) is ... and "is_main_process" in called.keywords:
        return NONE
    name = atom.name if isinstance(atom, Opaque) else atom.cls.name if isinstance(atom, Instance) else ""
    small = TOKENIZER.matches(name)
    role: facts.Role = "file" if small else "checkpoint"
    path = called.value("save_directory")
    machine.record(facts.Save(called.name, object=(atom,), path=path, role=role), called.site)
    return NONE


def _to_path(machine: Machine, atom: Any, called: Call) -> Value | None:
    """``figure.savefig(path)``, ``frame.to_csv(path)``: without a path these give what they would write."""
    path = called.value("path")
    if not path or constant(path) is None:
        return None
    machine.record(facts.Save(called.name, object=(atom,), path=path, role="file"), called.site)
    return NONE


def _read_path(machine: Machine, atom: Any, called: Call) -> None:
    """``path.read_text()``: what it gives is as of any other method of something unknown."""
    machine.record(facts.Read(called.name, path=(atom,)), called.site)


def _save(machine: Machine, atom: Any, called: Call) -> Value | None:
    """``image.save(path)`` of Pillow and ``tokenizer.save(path)``; whatever else has such a method may guard itself."""
    if isinstance(atom, Opaque) and (atom.name.startswith("PIL.") or _is_tokenizer(atom)):
        return _to_path(machine, atom, called)
    return None


def _is_tokenizer(atom: Opaque) -> bool:
    return atom.name.startswith("tokenizers.")


def _format(machine: Machine, atom: Any, called: Call) -> Value | None:
    if isinstance(atom, (Const, Opaque)):
        name = str(atom.value) if isinstance(atom, Const) else atom.name
        return (Opaque(name, carried_by((atom, *called.given)), sameness.is_alike((atom, *called.given))),)
    return None


def _barrier(machine: Machine, atom: Any, called: Call) -> Value | None:
    if isinstance(atom, Opaque) and LAUNCHER.matches(atom.name):
        machine.record(facts.Collective(called.name, arguments=called.given), called.site)
        return UNKNOWN
    return None


def _submit(machine: Machine, atom: Any, called: Call) -> Value | None:
    """``executor.submit(trainer)``: the object is called on the cluster, or in a thread of this very process."""
    for target in bare(called.argument(0)):
        if isinstance(atom, Opaque) and atom.name == _THREADS and isinstance(target, (Instance, Function)):
            calls.call_values(machine, target, *called.args[1:], **called.keywords)
        elif isinstance(target, (Instance, Function)):
            calls.spawned(machine, (target,), called.args[1:], called.site)
    return UNKNOWN


_THREADS = "concurrent.futures.ThreadPoolExecutor()"


_SAVED_IN = "save_directory * is_main_process"
_OF_LOADING = "state_dict * assign"

DECLARED = (
    method("*", _super, of=Super),
    method("step", _schedule, of=Scheduler, notes=True, fact=facts.ScheduleStep),
    method(
        "setLevel",
        _set_level,
        of=Handler,
        parameters="level",
    ),
    method("*", _writer, of=Writer),
    method("to cuda", _moved_shell, of=Shell, fact=(facts.Rework, facts.Device)),
    method(_SELF, _same_shell, of=Shell, fact=facts.Mode),
    method("module", _forward_inside, of=Shell, fact=facts.Forward),
    method("state_dict", of=Shell, on="of", makes=State),
    method("load_state_dict", _load_state_dict, of=Shell, parameters=_OF_LOADING, fact=facts.LoadState),
    method("forward __call__", networks.forward, of=Shell, fact=facts.Forward),
    method("no_sync join", networks.entered, of=Shell),
    method("backward", of=Engine, parameters="loss=", fact=facts.Backward, called="engine", result=NONE),
    method("parameters named_parameters modules children", _parts, of=Shell),
    method("*", _other, of=Shell),
    method("backward", on="loss", fact=facts.Backward, result=NONE),
    method("state_dict", on="of", makes=State),
    method("load_state_dict", _load_state_dict, parameters=_OF_LOADING, fact=facts.LoadState),
    method("set_epoch", on="target", parameters="epoch", fact=facts.SetEpoch, result=NONE),
    method("open", _open_path, parameters="mode", fact=facts.Save),
    method("fileno", makes=File),
    method("write_text write_bytes", on="path", fact=facts.Save, role="file", result=NONE),
    method("read_text read_bytes", _read_path, fact=facts.Read),
    method("save_pretrained", _save_pretrained, parameters=_SAVED_IN, fact=facts.Save),
    method("save_lora_adapter save_attn_procs", _save_pretrained, parameters=_SAVED_IN, fact=facts.Save),
    method("export_chrome_trace export_memory_timeline", _to_path, parameters="path", fact=facts.Save),
    method("savefig", _to_path, parameters="path=fname", fact=facts.Save),
    method("to_csv to_json", _to_path, parameters="path=path_or_buf", fact=facts.Save),
    method("to_parquet to_pickle tofile", _to_path, parameters="path=path=fid", fact=facts.Save),
    method("write_html write_image", _to_path, parameters="path=file", fact=facts.Save),
    method("save_to_disk", _to_path, parameters="path=dataset_path", fact=facts.Save),
    method("save", _save, parameters="path=fp=path", fact=facts.Save),
    method("format joinpath", _format),
    method("export_to_onnx export_onnx", parameters="args= path=", fact=facts.Save, role="checkpoint", result=NONE),
    method("wait_for_everyone barrier", _barrier, fact=facts.Collective),
    method("submit", _submit),
)
