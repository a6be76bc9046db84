"""torch.distributed and its kin: process groups, ranks, collectives, launchers, devices."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import binding, calls, facts, gradients, metrics, vocabulary
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.marks import Rooted
from validate_ddp.interpreter.objects import Container, List, Sequence
from validate_ddp.interpreter.rows import api, method
from validate_ddp.interpreter.training import Group, Mesh
from validate_ddp.interpreter.values import (
    NONE,
    TRUE,
    UNKNOWN,
    Atom,
    Function,
    Opaque,
    Rank,
    RankTest,
    Symbol,
    Value,
    WorldSize,
    bare,
    carried_by,
    constant,
    is_none,
    merged,
)
from validate_ddp.models import unknown, uses
from validate_ddp.models.meshes import none_for_default
from validate_ddp.models.out_of_place import TORCH, is_out_of_place
from validate_ddp.source.syntax import Constant, Name
from validate_ddp.source.traversal import dotted, keywords_of


def collective(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A function that every rank of its group must call."""
    dropped: facts.Lost = ""
    if uses.is_dropped(call):
        dropped = _lost(machine, symbol, call)
    elif "async_op" in call.keywords and constant(call.keywords["async_op"]) is True:
        dropped = "handle" if uses.is_unwaited(machine, call) else ""
    met = facts.Collective(
        symbol.last,
        arguments=call.given,
        function=(symbol,),
        group=none_for_default(_group(symbol, call)),
        device_ids=call.argument(-1, "device_ids"),
        timeout=call.argument(-1, "timeout"),
        ranks=call.argument(0, "ranks") if symbol.last == "new_group" else (),
        timeout_text=_written(call, "timeout"),
        dropped=dropped,
    )
    machine.record(met, call.site)
    if symbol.name.rpartition(".")[0] in _BLIND:
        if symbol.last in _GATHERING:
            tensor = call.argument(1, "tensor") or call.argument(-1, "input_tensor")
            destination = call.argument(0, "tensor_list") or call.argument(-1, "output_tensor")
            gradients.receive(machine, destination, gradients.collect(machine, call, symbol.last, tensor))
        elif symbol.last == "all_reduce":
            gradients.reduce_in_place(machine, call, symbol.last)
        elif symbol.last == "all_gather_object":
            gradients.receive(machine, call.argument(0), gradients.cut_parts(carried_by(call.given)))
    if symbol.last in ("broadcast_object_list", "scatter_object_list"):
        _share(machine, call)
    carries = carried_by(call.given)
    if symbol.name.startswith("horovod") and not symbol.last.endswith("_"):
        carries = metrics.with_mark(metrics.REDUCED, carries)  # out of place
    elif symbol.last not in ("barrier", "monitored_barrier", "new_group"):
        metrics.items_reduced(machine, call)
        carries = metrics.reduced(call, carries)
        metrics.collective_in_method(machine)
    if symbol.last == "reduce" and symbol.name.rpartition(".")[0] in _BLIND:
        _root(machine, call)
    if symbol.last == "new_group":
        return (Group(call.site, ranks=call.argument(0, "ranks") or NONE),)
    if symbol.last == "init_device_mesh":
        return (Mesh(call.site, shape=call.argument(1, "mesh_shape"), whole=TRUE),)
    return (Opaque(symbol.last + "()", carries),)


def _group(symbol: Symbol, call: Call) -> Value:
    """The group that a collective is given, by name or in its place among the parameters."""
    at = _PLACES_OF_GROUP.get(symbol.last, -1) if symbol.name.rpartition(".")[0] in _BLIND else -1
    return call.argument(at, "group")


_PLACES_OF_GROUP = (
    dict.fromkeys(("barrier", "monitored_barrier"), 0)
    | dict.fromkeys(
        """all_reduce broadcast all_gather all_gather_into_tensor _all_gather_base all_gather_object all_to_all
        broadcast_object_list all_gather_coalesced all_reduce_coalesced""".split(),
        2,
    )
    | dict.fromkeys(
        """reduce gather gather_object scatter scatter_object_list reduce_scatter reduce_scatter_tensor
        _reduce_scatter_base""".split(),
        3,
    )
    | {"all_to_all_single": 4}
)
"""Where among its parameters a collective of torch.distributed has the group."""


def _share(machine: Machine, call: Call) -> None:
    """After a broadcast of objects every rank has what one had."""
    for value in (*call.args, *call.keywords.values()):
        for atom in bare(value):
            if isinstance(atom, List):
                for key, held in list(atom.fields.items()):
                    sent = tuple(_sent(each) for each in bare(held) if not is_none(each))
                    machine.write(atom.fields, key, sent or UNKNOWN)


def _sent(atom: Atom, within: tuple[Atom, ...] = ()) -> Atom:
    """What all ranks have of something that one of them has sent, a copy: no more is it another on each, nor are the
    parts of a container. within: what it is a part of."""
    if isinstance(atom, Container) and not any(atom is each for each in within):
        around = (*within, atom)
        parts = {key: tuple(_sent(each, around) for each in bare(held)) for key, held in atom.fields.items()}
        return type(atom)(atom.site, parts)
    return Opaque("", alike=True) if isinstance(atom, (Rank, RankTest)) else atom


def _root(machine: Machine, call: Call) -> None:
    """After a ``reduce`` the tensor holds the result on one rank. Its name is bound anew: copies from before hold what
    they did."""
    node = call.node.args[0] if call.node and call.node.args else None
    if not isinstance(node, Name):
        return
    mark = Rooted(call.site)
    marked: Value = tuple(
        Opaque(atom.name, merged(mark, *atom.carries)) if type(atom) is Opaque else atom for atom in call.argument(0)
    )
    binding.assign(machine, node, marked, written=False)


_BLIND = ("torch.distributed", "torch.distributed.distributed_c10d")
"""Whose collectives autograd does not see."""
_GATHERING = frozenset({"all_gather", "all_gather_into_tensor", "_all_gather_base"})


def _lost(machine: Machine, symbol: Symbol, call: Call) -> facts.Lost:
    """What is lost with the result of a call that is a statement of its own: a ``handle``, a ``result``, or nothing."""
    if constant(call.argument(-1, "async_op")) is True or "_async" in symbol.last:
        return "handle" if uses.is_unwaited(machine, call) else ""
    return out_of_place(machine, call) if is_out_of_place(symbol) else ""


def out_of_place(machine: Machine, call: Call) -> facts.Lost:
    """``result`` where the tensor that went in is used again, as though it held the result.

    An argument that nobody uses again is one way to write a barrier.
    """
    used = any(uses.is_used_after(machine, call, name) for name in uses.names_given(call))
    return "result" if used else ""


def _initialise(machine: Machine, symbol: Symbol, call: Call) -> Value:
    world_size = call.value("world_size")
    if constant(world_size or machine.environment.get("WORLD_SIZE", ())) in (1, "1"):
        machine.record(facts.WorldOfOne("init"), call.site)
        return NONE
    started = facts.ProcessGroup(
        "init",
        rank=call.value("rank"),
        world_size=world_size,
        backend=call.value("backend"),
        deepspeed=symbol.name.startswith("deepspeed"),
        timeout=call.value("timeout"),
        device_id=call.value("device_id"),
        timeout_text=_written(call, "timeout"),
        one_node=_is_loop_back(machine, constant(call.value("init_method"))),
        world_size_text=_written(call, "world_size"),
        rank_text=_written(call, "rank"),
    )
    machine.counts.starts += 1
    machine.record(started, call.site)
    return NONE


def _is_loop_back(machine: Machine, method: Any) -> bool:
    """Whether the ranks meet at an address that other machines cannot reach."""
    if isinstance(method, str) and method.startswith("tcp:"):
        return method.startswith(("tcp://127.0.0.1", "tcp://localhost"))
    return constant(machine.environment.get("MASTER_ADDR", ())) in ("127.0.0.1", "localhost")


def _written(call: Call, name: str) -> str:
    """The source text of a keyword argument, where it is no more than a name, a field or a number."""
    node = keywords_of(call.node).get(name) if call.node else None
    if isinstance(node, Constant) and type(node.value) in (int, float):
        return str(node.value)
    return (dotted(node) if node else None) or ""


def _at_exit(machine: Machine, symbol: Symbol, call: Call) -> Value:
    for atom in bare(call.value("func")):
        if isinstance(atom, Symbol) and atom.last == "destroy_process_group":
            machine.record(facts.ProcessGroup("destroy"), call.site)
        elif isinstance(atom, Function):
            machine.call(atom)
    return NONE


def _is_initialized(machine: Machine, symbol: Symbol, call: Call) -> Value:
    started = any(
        isinstance(fact, (facts.ProcessGroup, facts.Wrap)) and fact.name != "destroy" for fact in machine.facts
    )
    return TRUE if started else (Opaque("is_initialized_yet"),)


def _spawn(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``mp.spawn(fn, args, nprocs)``: fn(index, *args) in each process."""
    nprocs = call.value("nprocs")
    if constant(nprocs) == 1:
        return NONE
    machine.record(facts.Launch("spawn", nprocs=nprocs), call.site)
    given = [_counted(value, nprocs) for value in _arguments(call.value("args"))]
    calls.spawned(machine, call.value("fn"), [(Rank("spawn"),), *given], call.site)
    return NONE


def _counted(value: Value, nprocs: Value) -> Value:
    """What is handed to processes that are started as many times as it says is their number."""
    return (WorldSize(local=True),) if value and value == nprocs and constant(value) is ... else value


def launched_in_notebook(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``notebook_launcher(fn, args, num_processes)`` of Accelerate: fn(*args) in each process."""
    number = call.value("num_processes")
    if constant(number) != 1:
        machine.record(facts.Launch("spawn", nprocs=number), call.site)
        calls.spawned(machine, call.value("function"), _arguments(call.value("args")), call.site)
    return NONE


def _arguments(value: Value) -> list[Value]:
    for atom in bare(value):
        if isinstance(atom, Sequence):
            return list(atom.fields.values())
    return []


def _process(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``Process(target=fn, args=(i, ...))`` in a loop: one process a rank, the loop's number its rank."""
    given = _arguments(call.value("args"))
    counters = {loop.target for loop in machine.loops if loop.target}
    if machine.loops:
        machine.record(facts.Launch("Process"), call.site)
    arguments = [
        (Rank("spawn"),) if any(isinstance(a, Opaque) and a.name in counters for a in bare(value)) else value
        for value in given
    ]
    calls.spawned(machine, call.value("target"), arguments, call.site)
    return (Opaque("process"),)


def _thread(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``Thread(target=dist.destroy_process_group)``: run in this very process."""
    for atom in bare(call.value("target")):
        if isinstance(atom, Symbol):
            called = Call(atom.last, _arguments(call.value("args")), {}, call.site)
            machine.registry.call_symbol(machine, atom, called)
    return unknown.unresolved(machine, symbol, call)


def _bind_process(machine: Machine, atom: Any, call: Call) -> Value | None:
    """``context.Process(target=..., args=...)`` and ``ctx.spawn``: contexts of multiprocessing."""
    if "target" in call.keywords:
        return machine.registry.call_symbol(machine, Symbol("multiprocessing.Process"), call)
    return None


_GLOBAL, _LOCAL, _WORLD, _NODE = (Rank("global"),), (Rank("local"),), (WorldSize(),), (WorldSize(local=True),)
_STARTING = "torch.multiprocessing multiprocessing torch_xla"

DECLARED = (
    api(vocabulary.COLLECTIVES, collective, within="torch.distributed", fact=facts.Collective),
    *(api(names, collective, within=place, fact=facts.Collective) for place, names in TORCH.items()),
    api(
        "init_process_group",
        _initialise,
        within="torch.distributed",
        parameters="backend init_method timeout world_size rank * device_id",
        fact=facts.ProcessGroup,
    ),
    api("is_available is_nccl_available", within="torch.distributed", result=TRUE),
    api("is_initialized", _is_initialized, within="torch.distributed"),
    api("is_torchelastic_launched", within="torch.distributed", result=UNKNOWN),
    api("get_node_local_rank", within="torch.distributed", result=_LOCAL),
    api("destroy_process_group", within="*", fact=facts.ProcessGroup, called="destroy", result=NONE),
    api(
        "init_distributed",
        _initialise,
        within="deepspeed",
        parameters="backend=dist_backend * init_method timeout world_size rank device_id",
        fact=facts.ProcessGroup,
    ),
    api("atexit.register", _at_exit, parameters="func", fact=facts.ProcessGroup),
    api(
        "set_device set_device_index",
        within="torch.cuda torch.accelerator",
        parameters="device",
        fact=facts.Device,
        result=NONE,
    ),
    api("device_count", within="torch.cuda torch.accelerator", result=_NODE),
    api("is_available", within="torch.cuda torch.accelerator", result=TRUE),
    api("spawn start_processes", _spawn, within=_STARTING, parameters="fn args nprocs", fact=facts.Launch),
    api("Process", _process, within=_STARTING, parameters="group target name args", fact=facts.Launch),
    api("threading.Thread", _thread, parameters="group target name args"),
    api("threading.Timer", _thread, parameters="interval target=function args"),
    api("is_master_ordinal", within="torch_xla", result=(RankTest("zero"),)),
    api("get_ordinal global_ordinal", within="torch_xla", result=_GLOBAL),
    api("get_local_ordinal", within="torch_xla", result=_LOCAL),
    api("xrt_world_size", within="torch_xla", result=_WORLD),
    api("rendezvous mesh_reduce", collective, within="torch_xla", fact=facts.Collective),
    api(vocabulary.HOROVOD_COLLECTIVES, collective, within="horovod", fact=facts.Collective),
    api("init", within="horovod", result=NONE),
    api("rank", within="horovod", fact=facts.Launch, called="horovod", result=_GLOBAL),  # who asks means several
    api("local_rank", within="horovod", fact=facts.Launch, called="horovod", result=_LOCAL),
    api("size", within="horovod", fact=facts.Launch, called="horovod", result=_WORLD),
    api("local_size", within="horovod", fact=facts.Launch, called="horovod", result=_NODE),
    api(vocabulary.MPI_COLLECTIVES, collective, within="mpi4py", fact=facts.Collective),
    api("Get_rank", within="mpi4py", result=_GLOBAL),
    api("Get_size", within="mpi4py", result=_WORLD),
    method("Process", _bind_process, fact=facts.Launch),
)
