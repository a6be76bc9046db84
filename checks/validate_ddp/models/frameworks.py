"""Accelerate, Lightning Fabric and DeepSpeed: objects that wrap, shard and save for the script."""

from __future__ import annotations

from typing import Any, TypeVar

from validate_ddp.interpreter import calls, facts, gradients, metrics, vocabulary
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import List, Tuple, contents
from validate_ddp.interpreter.rows import Attributes, Model, api, method
from validate_ddp.interpreter.training import (
    DDP,
    Accelerator,
    Engine,
    Fabric,
    Launcher,
    Loader,
    Prepared,
    Scheduler,
    Shell,
    WrapperOptions,
)
from validate_ddp.interpreter.values import (
    NONE,
    TRUE,
    UNKNOWN,
    Const,
    Function,
    Instance,
    Opaque,
    Rank,
    RankTest,
    Resource,
    Symbol,
    Value,
    WorldSize,
    bare,
    carried_by,
    constant,
    join,
)
from validate_ddp.models import distributed, networks, sharded, uses
from validate_ddp.source.syntax import Constant
from validate_ddp.source.traversal import keywords_of

_L = TypeVar("_L", bound=Launcher)
_WORKING = frozenset(
    """prepare prepare_model prepare_data_loader setup setup_module setup_dataloaders launch split_between_processes
    gather gather_for_metrics reduce wait_for_everyone accumulate backward save_state main_process_first all_gather
    all_reduce barrier broadcast on_main_process pad_across_processes local_main_process_first""".split()
)
"""Methods of a launcher that a script calls which means to run on several ranks."""


def _made(launcher: type[Launcher]) -> Model:
    return lambda machine, symbol, call: (made(launcher, machine, call),)


def made(kind: type[_L], machine: Machine, call: Call) -> _L:
    """The launcher that is made of these options."""
    launcher = kind(call.site)
    if call.open or "split_batches" in call.keywords or "dataloader_config" in call.keywords:
        launcher.split = TRUE  # its loaders may cut batches up instead of dealing them out
    if "step_scheduler_with_optimizer" in call.keywords:
        launcher.own_schedule = TRUE
    turns = call.argument(-1, "gradient_accumulation_steps") or call.argument(-1, "gradient_accumulation_plugin")
    if turns and constant(turns) != 1:
        launcher.accumulating = turns
    if "mixed_precision" in call.keywords:
        launcher.precision = call.keywords["mixed_precision"]
    if issubclass(kind, Fabric) and constant(call.argument(-1, "devices")) == 1:
        launcher.single = TRUE
        if call.node is not None and keywords_of(call.node).get("devices") == Constant(1):
            machine.flags.append(Flag.ALONE)  # until the function ends that says so
    if issubclass(kind, Fabric) and call.argument(-1, "callbacks"):
        launcher.fields["callbacks"] = call.argument(-1, "callbacks")
    sharded.note_plugins(launcher, call)
    handlers = call.argument(-1, "kwargs_handlers")
    launcher.wrapping = tuple(atom for atom in contents(handlers) if isinstance(atom, WrapperOptions))
    return launcher


def _collective(machine: Machine, symbol: Symbol, call: Call) -> Value:
    dropped = _lost(machine, symbol.last, call)
    machine.record(facts.Collective(symbol.last, arguments=call.given, function=(symbol,), dropped=dropped), call.site)
    carries = metrics.reduced(call, _collected(machine, symbol.last, call), in_place=symbol.last not in _OUT_OF_PLACE)
    return (Opaque(symbol.last + "()", carries),)


def _collected(machine: Machine, name: str, call: Call) -> tuple[Any, ...]:
    """What the result of a collective of Accelerate or Fabric carries."""
    if name in ("gather", "gather_for_metrics", "all_gather"):
        if constant(call.argument(-1, "sync_grads")) is True:
            return carried_by(call.given)
        return gradients.collect(machine, call, name, call.argument(0, "tensor") or call.given)
    if name == "reduce":
        return gradients.collect(machine, call, name, call.argument(0, "tensor"), reduces=True)
    return carried_by(call.given)


_OUT_OF_PLACE = frozenset({"gather", "gather_for_metrics", "reduce", "pad_across_processes", "all_gather"})
"""Collectives of Accelerate and Fabric that only return their result; Fabric's ``all_reduce`` also works in place."""


def _lost(machine: Machine, name: str, call: Call) -> facts.Lost:
    if name in _OUT_OF_PLACE and uses.is_dropped(call):
        return distributed.out_of_place(machine, call)
    return ""


def _deepspeed(machine: Machine, symbol: Symbol, call: Call) -> Value:
    inner = call.value("model")
    engine = Engine(call.site, inner=inner)
    machine.record(facts.Launch("deepspeed"), call.site)
    machine.record(facts.Wrap("engine", wrapper=(engine,), inner=inner), call.site)
    loader: Value = (Loader(call.site, prepared=(Const(True),)),)
    fields: dict[str, Value] = {"0": (engine,), "1": (Opaque("optimizer"),), "2": loader, "3": (Opaque("scheduler"),)}
    return (Tuple(call.site, fields),)


def _working(machine: Machine, launcher: Launcher, call: Call) -> None:
    """Only now: an application that makes an Accelerator for its device alone runs in one process."""
    if not launcher.single:
        machine.record(facts.Launch(launcher.called, launcher=(launcher,)), launcher.site)


def _prepare(machine: Machine, launcher: Launcher, call: Call) -> Value | None:
    if launcher.single:
        return call.args[0] if len(call.args) == 1 else None
    machine.record(facts.Preparing(call.name, launcher=(launcher,), prepared=call.given, open=call.open), call.site)
    prepared = [_prepared(machine, launcher, value, call) for value in call.args]
    if call.open and not call.args:
        launcher.unseen = TRUE
    if len(prepared) == 1 and not call.open:
        return prepared[0]
    fields = {str(index): value for index, value in enumerate(prepared)}
    if call.open:
        fields = {"*": (Opaque("prepared"),)}
    return (Tuple(call.site, fields),)


def _unwrap(machine: Machine, launcher: Launcher, call: Call) -> Value:
    return unwrapped(call.value("model"))


def _collect(machine: Machine, launcher: Launcher, call: Call) -> Value:
    name = call.name
    dropped = _lost(machine, name, call)
    machine.record(facts.Collective(name, arguments=call.given, launcher=(launcher,), dropped=dropped), call.site)
    carries = metrics.reduced(call, _collected(machine, name, call), in_place=name not in _OUT_OF_PLACE)
    return (Opaque(name + "()", carries),)


def _options(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (WrapperOptions(call.site, dict(call.keywords)),)


def _register(machine: Machine, launcher: Launcher, call: Call) -> Value | None:
    """A hook: run by save_state and load_state, on the ranks that call those."""
    if not call.args:
        return None
    held = List(call.site, {"*": call.args[0]})
    machine.write(launcher.fields, call.name, join(launcher.fields.get(call.name, ()), (held,)))
    return NONE


def _launch(machine: Machine, launcher: Launcher, call: Call) -> Value | None:
    if not call.args:
        return None
    calls.spawned(machine, call.args[0], [(launcher,), *call.args[1:]], call.site)
    return NONE


def _print(machine: Machine, launcher: Launcher, call: Call) -> Value:
    with machine.guarded("zero"):
        metrics.report(machine, call)
    return NONE


def _hooked(machine: Machine, launcher: Launcher, call: Call) -> Value:
    """Run the hooks that were registered for saving or loading the state."""
    for held in bare(launcher.fields.get(f"register_{call.name}_pre_hook", ())):
        for hook in bare(held.fields["*"]) if isinstance(held, List) else ():
            if isinstance(hook, Function):
                machine.call(hook, UNKNOWN, UNKNOWN, UNKNOWN)
    return NONE


def _prepared(machine: Machine, launcher: Launcher, value: Value, call: Call) -> Value:
    """What ``prepare`` makes of its argument: wrapped models, sharded loaders."""
    result: Value = ()
    for atom in bare(value):
        if isinstance(atom, Instance) and isinstance(atom.base, Loader):
            atom = atom.base
        if isinstance(atom, Loader):
            dealt = atom.copy()
            dealt.prepared = (Const(True),)
            result = join(result, (dealt,))
        elif networks.is_model(atom):
            options: dict[str, Value] = {
                name: held.fields[name]
                for held in launcher.wrapping
                for name in networks.OPTIONS
                if name in held.fields
            }
            wrapper = DDP(call.site, inner=(atom,), flavour=(Const(launcher.called),), **options)
            machine.record(facts.Wrap("prepare", wrapper=(wrapper,), inner=(atom,)), call.site)
            result = join(result, (wrapper,))
        elif isinstance(atom, Resource):
            if isinstance(atom, Scheduler):
                atom.prepared = (Const(True),)
            result = join(result, (atom,))
        else:
            result = join(result, (Prepared(call.site, inner=(atom,)),))
    return result or UNKNOWN


def unwrapped(value: Value) -> Value:
    """The models inside wrappers."""
    result: Value = ()
    for atom in bare(value):
        if isinstance(atom, Shell):
            result = join(result, atom.inner or UNKNOWN)
        else:
            result = join(result, (atom,))
    return result or UNKNOWN


_ATTRIBUTES: dict[str, Value] = {
    "is_main_process": (RankTest("zero"),),
    "is_global_zero": (RankTest("zero"),),
    "is_world_process_zero": (RankTest("zero"),),
    "is_last_process": (RankTest("some"),),
    "is_local_main_process": (RankTest("local-zero"),),
    "process_index": (Rank("global"),),
    "global_rank": (Rank("global"),),
    "local_process_index": (Rank("local"),),
    "local_rank": (Rank("local"),),
    "num_processes": (WorldSize(),),
    "world_size": (WorldSize(),),
    "node_rank": (Rank("node"),),
    "device": (Opaque("device"),),
}


DECLARED = (
    api("Accelerator PartialState AcceleratorState", _made(Accelerator), within="accelerate", fact=facts.Launch),
    api(vocabulary.ACCELERATE_UTILITIES, _collective, within="accelerate", fact=facts.Collective),
    api(
        "notebook_launcher debug_launcher",
        distributed.launched_in_notebook,
        within="accelerate",
        parameters="function args num_processes",
        fact=facts.Launch,
    ),
    api("Fabric", _made(Fabric), within="lightning lightning_fabric pytorch_lightning lite", fact=facts.Launch),
    api("DistributedDataParallelKwargs", _options, within="accelerate"),
    api("initialize", _deepspeed, within="deepspeed", parameters="args model", fact=(facts.Launch, facts.Wrap)),
    method(_WORKING, _working, of=Launcher, notes=True, fact=facts.Launch),
    method(
        "prepare prepare_model prepare_data_loader setup setup_module setup_dataloaders",
        _prepare,
        of=Launcher,
        fact=(facts.Wrap, facts.Preparing),
    ),
    method("unwrap_model extract_model_from_parallel", _unwrap, of=Launcher, parameters="model"),
    method("get_state_dict", of=Launcher, result=(Opaque("state"),)),
    method("save save_model", of=Launcher, result=NONE),  # writes on the main process only
    method("backward", of=Launcher, on="launcher", parameters="loss", fact=facts.Backward, result=NONE),
    method(
        "no_sync accumulate autocast main_process_first local_main_process_first no_backward_sync",
        networks.entered,
        of=Launcher,
    ),
    method(vocabulary.ACCELERATE_COLLECTIVES, _collect, of=Accelerator, fact=facts.Collective),
    method(vocabulary.FABRIC_COLLECTIVES, _collect, of=Fabric, fact=facts.Collective),
    method("register_*", _register, of=Launcher),
    method("save_state load_state", _hooked, of=Launcher),
    method("launch", _launch, of=Launcher),
    method("print log", _print, of=Launcher),
    method("wait_for_everyone free_memory end_training clear", of=Launcher, result=NONE),
    Attributes(Launcher, _ATTRIBUTES),
)
