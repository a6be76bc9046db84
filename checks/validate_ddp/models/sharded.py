"""State that lies in shards on all ranks: to gather, save or load it, every rank must call the same function."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.derived import LightningLite
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names_of_training import PLUGIN
from validate_ddp.interpreter.rows import api, method, named
from validate_ddp.interpreter.training import (
    DDP,
    FSDP,
    Accelerator,
    Engine,
    Fabric,
    Launcher,
    State,
    StateOptions,
    Wrapper,
)
from validate_ddp.interpreter.values import NONE, TRUE, Instance, Opaque, Symbol, Value, bare, carried_by, constant
from validate_ddp.models import unknown

_CHECKPOINT = frozenset("save load async_save save_state_dict load_state_dict".split())
_STATES = frozenset(
    """get_state_dict get_model_state_dict get_optimizer_state_dict set_state_dict set_model_state_dict
    set_optimizer_state_dict""".split()
)
_OF_FSDP = frozenset(
    """full_optim_state_dict sharded_optim_state_dict scatter_full_optim_state_dict shard_full_optim_state_dict
    optim_state_dict optim_state_dict_to_load summon_full_params""".split()
)
_PARTING = frozenset("distribute_tensor distribute_module PipelineStage pipeline".split())


def _record(machine: Machine, call: Call, name: str, receiver: Value, sure: bool) -> None:
    machine.record(facts.ShardedState(name, receiver=receiver, sure=sure), call.site)


def _checkpoint(machine: Machine, symbol: Symbol, call: Call) -> Value:
    alone = constant(call.value("no_dist")) is True or call.value("process_group")
    if not alone:
        _record(machine, call, f"checkpoint.{symbol.last}", (), sure=True)
    return unknown.unresolved(machine, symbol, call)


def _states(machine: Machine, symbol: Symbol, call: Call) -> Value:
    model = call.value("model")
    wrapped = bool(model) and all(isinstance(atom, FSDP) for atom in bare(model))
    if wrapped or (_is_gathered(call) and any(_is_sharded(machine, atom) for atom in bare(model))):
        _record(machine, call, symbol.last, model, sure=True)
    elif _is_gathered(call) and any(map(_cuts_up, machine.facts)) and not _is_replicated(machine, model):
        _record(machine, call, symbol.last, model, sure=False)
    return (State(call.site, of=()),)


def _is_replicated(machine: Machine, model: Value) -> bool:
    """Whether the model is one that DDP keeps whole on every rank."""
    inner = [
        atom
        for fact in machine.facts
        if isinstance(fact, facts.Wrap) and fact.name == "ddp"
        for atom in bare(fact.inner)
    ]
    return bool(model) and all(
        isinstance(atom, DDP) or any(atom is replicated for replicated in inner) for atom in bare(model)
    )


def _state_type(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``with FSDP.state_dict_type(model, ...)``: says that the model is one of FSDP, where nothing else does."""
    model = call.value("model")
    if not any(isinstance(atom, FSDP) for atom in bare(model)):
        _record(machine, call, symbol.last, (), sure=True)
    return (Opaque(f"{symbol.last}()"),)


def _is_gathered(call: Call) -> bool:
    """Whether the state is asked for whole: only then does FSDP2 communicate."""
    options = bare(call.value("options"))
    return bool(options) and all(
        isinstance(atom, StateOptions) and constant(atom.full_state_dict) is True for atom in options
    )


def _is_sharded(machine: Machine, model: Any) -> bool:
    """Whether ``fully_shard`` was applied to the model."""
    return isinstance(model, (Instance, Opaque)) and any(
        isinstance(fact, facts.Shard) and any(atom is model for atom in bare(fact.model)) for fact in machine.facts
    )


def _full_tensor(machine: Machine, atom: Any, call: Call) -> Value | None:
    """``dtensor.full_tensor()``, and ``dtensor.redistribute(placements=...)``, known by what only they take."""
    takes = {"placements", "device_mesh", "async_op", "forward_dtype", "backward_dtype"}
    if call.name == "redistribute" and ("placements" not in call.keywords or not takes.issuperset(call.keywords)):
        return None
    if call.name == "full_tensor" and (call.args or not {"grad_placements"}.issuperset(call.keywords)):
        return None
    _record(machine, call, call.name, (), sure=any(map(_cuts_up, machine.facts)))
    return (Opaque(f"{call.name}()", carried_by((atom,))),)


def _no_sync(machine: Machine, atom: Any, call: Call) -> Value | None:
    """``model.no_sync()`` of what is no wrapper: what it gives, another row says."""
    if isinstance(atom, (Instance, Opaque)):
        machine.record(facts.NoSync(call.name, model=(atom,)), call.site)
    return None


def _cuts_up(fact: Fact) -> bool:
    """Whether it surely makes tensors that lie in shards."""
    return isinstance(fact, (facts.Shard, facts.Partition)) and not fact.hangs_on_unknown


def _options(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (StateOptions(call.site, dict(call.keywords)),)


def _of_wrapper(machine: Machine, wrapper: Wrapper, call: Call) -> None:
    _record(machine, call, call.name, call.receiver, sure=True)


def _of_launcher(machine: Machine, launcher: Launcher, call: Call) -> None:
    if isinstance(launcher, LightningLite) and not launcher.sharded:
        return  # writes on the first rank what DDP keeps whole, and waits for nobody
    if not launcher.single:
        _record(machine, call, call.name, call.receiver, isinstance(launcher, Fabric) or bool(launcher.sharded))


def note_plugins(launcher: Launcher, call: Call) -> None:
    """Remember that the script itself asks its Accelerator for DeepSpeed or FSDP."""
    for option in ("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin"):
        value = bare(call.argument(-1, option))
        if value and all(isinstance(atom, Opaque) and PLUGIN.matches(atom.name) for atom in value):
            launcher.sharded = TRUE


_PARALLEL = "torch.distributed.tensor torch.distributed._tensor torch.distributed.pipelining"

DECLARED = (
    api("StateDictOptions", _options, within="torch.distributed"),
    api(
        "parallelize_module",
        within=_PARALLEL,
        parameters="module mesh=device_mesh plan=parallelize_plan",
        fact=facts.Partition,
        result="module",
    ),
    api(_PARTING, within=_PARALLEL, fact=facts.Partition, result=named),
    api(
        _CHECKPOINT,
        _checkpoint,
        within="torch.distributed.checkpoint",
        parameters="* no_dist process_group",
        fact=facts.ShardedState,
    ),
    api(_STATES, _states, within="torch.distributed.checkpoint", parameters="model * options", fact=facts.ShardedState),
    api(
        "state_dict_type",
        _state_type,
        within="torch.distributed.fsdp",
        parameters="model=module=model",
        fact=facts.ShardedState,
    ),
    api(
        _OF_FSDP,
        within="torch.distributed.fsdp",
        parameters="receiver=model=module",
        fact=facts.ShardedState,
        sure=True,
        result=lambda name, call: (Opaque(name.rpartition(".")[2] + "()"),),
    ),
    method("state_dict summon_full_params", _of_wrapper, of=FSDP, notes=True, fact=facts.ShardedState),
    method(
        "save_checkpoint load_checkpoint save_16bit_model save_fp16_model",
        _of_wrapper,
        of=Engine,
        notes=True,
        fact=facts.ShardedState,
    ),
    method("save_state load_state get_state_dict", _of_launcher, of=Accelerator, notes=True, fact=facts.ShardedState),
    method("save load", _of_launcher, of=Fabric, notes=True, fact=facts.ShardedState),
    method("no_sync", _no_sync, fact=facts.NoSync),
    method("full_tensor redistribute", _full_tensor, fact=facts.ShardedState),
    method("consolidate_state_dict", fact=facts.ShardedState, receiver=(), sure=True, result=NONE),
)
