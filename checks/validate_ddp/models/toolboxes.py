"""Toolboxes on top of torch.distributed: detectron2 and fvcore, OpenMMLab's engines, lhotse."""

from __future__ import annotations

from validate_ddp.interpreter import calls, facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Sequence, Tuple
from validate_ddp.interpreter.rows import api, method
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.training import FileCheckpointer, State
from validate_ddp.interpreter.values import (
    NONE,
    UNKNOWN,
    Const,
    Opaque,
    Rank,
    RankTest,
    Symbol,
    Value,
    WorldSize,
    bare,
    carried_by,
    constant,
)
from validate_ddp.models import distributed
from validate_ddp.models.frameworks import unwrapped

_RANK, _LOCAL, _WORLD, _MAIN = (Rank("global"),), (Rank("local"),), (WorldSize(),), (RankTest("zero"),)
_COMM = "detectron2.utils.comm mmengine.dist mmcv.runner"


def _launch(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``launch(main, gpus, machines, machine_rank, url, args)`` of detectron2, which chooses each rank's device too."""
    gpus, machines = constant(call.value("gpus")), constant(call.value("machines") or (Const(1),))
    if gpus == machines == 1:
        return NONE
    machine.record(facts.Launch("spawn", nprocs=call.value("gpus")), call.site)
    given = next((list(atom.fields.values()) for atom in bare(call.value("args")) if isinstance(atom, Sequence)), [])
    machine.record(facts.Device("set_device", device=_LOCAL), call.site)
    calls.spawned(machine, call.value("main"), given, call.site)
    return NONE


def _dist_info(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Tuple(call.site, {"0": _RANK, "1": _WORLD}),)


def _checkpointer(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """fvcore's ``Checkpointer(model, folder)`` writes on every rank that saves; detectron2's own on rank zero."""
    made = FileCheckpointer(call.site, model=unwrapped(call.value("model")), folder=call.value("folder"))
    made.writes = call.value("writes") or (Const(not call.open),)
    return (made,)


def _periodic(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``PeriodicCheckpointer(checkpointer, period)``: its ``step`` saves with the one that it is given."""
    held = [atom for atom in bare(call.value("checkpointer")) if isinstance(atom, FileCheckpointer)]
    return tuple(held) or UNKNOWN


def _save(machine: Machine, saver: FileCheckpointer, call: Call) -> Value:
    if constant(saver.writes) is True:
        path: Value = (Opaque("checkpoint", carried_by((*saver.folder, *call.given)), is_alike(saver.folder)),)
        held: Value = (State(call.site, of=saver.model),)
        machine.record(facts.Save("Checkpointer.save", object=held, path=path, role="checkpoint"), call.site)
    return NONE


DECLARED = (
    api("get_rank", within=_COMM, result=_RANK),
    api("get_local_rank", within=_COMM, result=_LOCAL),
    api("get_world_size", within=_COMM, result=_WORLD),
    api("is_main_process", within=_COMM, result=_MAIN),
    api("get_dist_info", _dist_info, within=_COMM),
    api(
        """synchronize barrier gather all_gather all_reduce reduce_dict all_reduce_dict broadcast collect_results
        all_gather_object sync_random_seed shared_random_seed all_reduce_params broadcast_object_list""",
        distributed.collective,
        within=_COMM,
        fact=facts.Collective,
    ),
    api("init_dist", within="mmengine.dist mmcv.runner", fact=facts.Launch, called="init_dist", result=NONE),
    api(
        "detectron2.engine.launch detectron2.engine.launch.launch",
        _launch,
        parameters="main=main_func gpus=num_gpus_per_machine machines=num_machines machine_rank dist_url args",
        fact=(facts.Launch, facts.Device),
    ),
    api(
        "fvcore.common.checkpoint.Checkpointer",
        _checkpointer,
        parameters="model folder=save_dir * writes=save_to_disk",
        fact=facts.Save,
    ),
    api("fvcore.common.checkpoint.PeriodicCheckpointer", _periodic, parameters="checkpointer"),
    method("save step", _save, of=FileCheckpointer, fact=facts.Save),
)
