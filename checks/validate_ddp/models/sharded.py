"""State that lies in shards on all ranks: to gather, save or load it, every rank must call the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.training import FSDP, Engine, Fabric, Launcher, State, StateOptions
from validate_ddp.interpreter.values import NONE, TRUE, Instance, Opaque, Symbol, Value, bare, constant

if TYPE_CHECKING:
    from validate_ddp.interpreter.calls import Call

Model = Callable[[Machine, Symbol, "Call"], Value]
_CHECKPOINT = frozenset("save load async_save save_state_dict load_state_dict".split())
_STATES = frozenset(
    """get_state_dict get_model_state_dict get_optimizer_state_dict set_state_dict set_model_state_dict
    set_optimizer_state_dict""".split()
)
_OF_FSDP = frozenset(
    """full_optim_state_dict sharded_optim_state_dict scatter_full_optim_state_dict shard_full_optim_state_dict
    optim_state_dict optim_state_dict_to_load summon_full_params""".split()
)
_OF_ENGINE = frozenset("save_checkpoint load_checkpoint save_16bit_model save_fp16_model".split())
_OF_LAUNCHER = {"accelerator": ("save_state", "load_state", "get_state_dict"), "fabric": ("save", "load")}


def find(name: str) -> Model | None:
    """The model of a function of ``torch.distributed.checkpoint`` or of FSDP's class, if ``name`` is one."""
    if not name.startswith("torch.distributed."):
        return None
    _, _, rest = name.partition("torch.distributed.")
    last = name.rpartition(".")[2]
    if last == "StateDictOptions":
        return _options
    if last in _PARTING and rest.startswith(("tensor", "_tensor", "pipelining")):
        return _partition
    if rest.startswith("checkpoint."):
        return _checkpoint if last in _CHECKPOINT else _states if last in _STATES else None
    return _of_fsdp if rest.startswith("fsdp") and last in _OF_FSDP else None


_PARTING = frozenset("parallelize_module distribute_tensor distribute_module PipelineStage pipeline".split())


def _partition(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """Tensor and pipeline parallelism: from here on each rank holds a part of the model."""
    machine.record(facts.Partition(symbol.last), call.site)
    first = call.argument(0, "module")
    return (first if symbol.last == "parallelize_module" else ()) or (Opaque(symbol.name + "()"),)


def _record(machine: Machine, call: Call, name: str, receiver: Value, sure: bool) -> None:
    machine.record(facts.ShardedState(name, receiver=receiver, sure=sure), call.site)


def _checkpoint(machine: Machine, symbol: Symbol, call: Call) -> Value:
    from validate_ddp import models

    alone = constant(call.argument(-1, "no_dist")) is True or call.argument(-1, "process_group")
    if not alone:
        _record(machine, call, f"checkpoint.{symbol.last}", (), sure=True)
    return models.unresolved(machine, symbol, call)


def _states(machine: Machine, symbol: Symbol, call: Call) -> Value:
    model = call.argument(0, "model")
    wrapped = bool(model) and all(isinstance(atom, FSDP) for atom in bare(model))
    if wrapped or (_is_gathered(call) and any(_is_sharded(machine, atom) for atom in bare(model))):
        _record(machine, call, symbol.last, model, sure=True)
    return (State(call.site, of=()),)


def _is_gathered(call: Call) -> bool:
    """Whether the state is asked for whole: only then does FSDP2 communicate."""
    options = bare(call.argument(-1, "options"))
    return bool(options) and all(
        isinstance(atom, StateOptions) and constant(atom.full_state_dict) is True for atom in options
    )


def _is_sharded(machine: Machine, model: Any) -> bool:
    """Whether ``fully_shard`` was applied to the model."""
    return isinstance(model, Instance) and any(
        isinstance(fact, facts.Shard) and any(atom is model for atom in bare(fact.model)) for fact in machine.facts
    )


def _options(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (StateOptions(call.site, dict(call.keywords)),)


def _of_fsdp(machine: Machine, symbol: Symbol, call: Call) -> Value:
    _record(machine, call, symbol.last, call.argument(0, "model") or call.argument(0, "module"), sure=True)
    return (Opaque(symbol.last + "()"),)


def wrapper_method(machine: Machine, wrapper: FSDP | Engine, call: Call) -> None:
    """Note a method of an FSDP wrapper or a DeepSpeed engine that every rank must call."""
    name = call.name
    wanted = _OF_ENGINE if isinstance(wrapper, Engine) else ("state_dict", "summon_full_params")
    if name in wanted:
        _record(machine, call, name, call.receiver, sure=True)


def launcher_method(machine: Machine, launcher: Launcher, call: Call) -> None:
    """Note a method of an Accelerator or a Fabric that shares the state's shards between the ranks."""
    if call.name in _OF_LAUNCHER[launcher.called] and not launcher.single:
        sure = isinstance(launcher, Fabric) or bool(launcher.sharded)
        _record(machine, call, call.name, call.receiver, sure)


def note_plugins(launcher: Launcher, call: Call) -> None:
    """Remember that the script itself asks its Accelerator for DeepSpeed or FSDP."""
    for option in ("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin"):
        value = bare(call.argument(-1, option))
        if value and all(isinstance(atom, Opaque) and atom.name.endswith("Plugin()") for atom in value):
            launcher.sharded = TRUE


def consolidate(machine: Machine, atom: Any, call: Call) -> Value:
    """``ZeroRedundancyOptimizer.consolidate_state_dict()``: every rank sends its shard."""
    _record(machine, call, call.name, (), sure=True)
    return NONE
