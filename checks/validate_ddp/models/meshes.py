"""Meshes of devices and process groups: the rank of a process in one dimension of a mesh, or in a group."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names import GROUP, GROUP_GETTER, MESH
from validate_ddp.interpreter.objects import List
from validate_ddp.interpreter.rows import Attributes, api, method
from validate_ddp.interpreter.training import Group, Mesh
from validate_ddp.interpreter.values import (
    Const,
    Opaque,
    Rank,
    Symbol,
    Value,
    WorldSize,
    bare,
    constant,
    reaching,
)

_DEFAULT_GROUP = ("torch.distributed.group.WORLD", "torch.distributed.GroupMember.WORLD")


def none_for_default(group: Value) -> Value:
    """A group as a collective takes it, to which ``group.WORLD`` and None are the same; elsewhere it is no None."""
    return tuple(
        Const(None) if isinstance(atom, Symbol) and atom.name in _DEFAULT_GROUP else atom for atom in bare(group)
    )


def _is_of_some(group: Value) -> bool:
    """Whether it is a group other than the default one, as far as is known."""
    asked = none_for_default(group)
    return bool(asked) and constant(asked) is not None


def _called(value: Value) -> str:
    """How the code calls a dimension that it gives by name or number; empty where that is not known."""
    known = constant(value)
    return str(known) if isinstance(known, (str, int)) and type(known) is not bool else ""


def _dimension(holder: Value) -> str:
    """The dimension of a mesh or a group, where it is surely one."""
    names = {_called(atom.dimension) if isinstance(atom, (Mesh, Group)) else "" for atom in bare(holder)}
    return names.pop() if len(names) == 1 else ""


def _get_rank(machine: Machine, symbol: Symbol, call: Call) -> Value:
    group = call.value("group")
    if not _is_of_some(group):
        return (Rank("global"),)
    machine.record(facts.GroupRank(symbol.last), call.site)
    return (Rank("group", of=_dimension(group)),)


def _get_world_size(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (WorldSize(group=_is_of_some(call.value("group"))),)


def _rank_in_mesh(machine: Machine, mesh: Mesh, call: Call) -> Value:
    """``mesh.get_local_rank("dp")``: not the rank in the node."""
    machine.record(facts.GroupRank(call.name), call.site)
    return (Rank("group", of=_called(call.value("mesh_dim")) or _dimension((mesh,))),)


def _coordinate(machine: Machine, mesh: Mesh, call: Call) -> Value:
    """The ranks of the process in all dimensions, in their order."""
    machine.record(facts.GroupRank(call.name), call.site)
    return (List(call.site, {"*": (Rank("group"),)}),)


def _size(machine: Machine, mesh: Mesh, call: Call) -> Value:
    """Of a dimension, else of the whole mesh, which is as large as the world wherever it is made of all ranks."""
    return (WorldSize(group=bool(call.given or mesh.dimension or not mesh.whole)),)


def _group(machine: Machine, mesh: Mesh, call: Call) -> Value:
    return (Group(call.site, dimension=call.value("mesh_dim") or mesh.dimension),)


def _groups(machine: Machine, mesh: Mesh, call: Call) -> Value:
    return (List(call.site, {"*": (Group(call.site),)}),)


def _rank_in_group(machine: Machine, group: Group, call: Call) -> Value:
    machine.record(facts.GroupRank(call.name), call.site)
    return (Rank("group", of=_dimension((group,))),)


def rank_in(atom: Any, call: Call) -> Value:
    """``mesh.get_local_rank(dimension)`` and ``group.rank()`` of what came from out of sight; empty for other calls.

    Only a mesh takes the dimension. Else what it was computed from tells, or the name.
    """
    last = call.name.lower().lstrip("_").removeprefix("get_")
    if last == "local_rank":
        if call.given:
            return (Rank("group", named=last, of=_called(call.argument(0, "mesh_dim"))),)
        if any(isinstance(part, Mesh) for part in reaching((atom,))) and isinstance(atom, Opaque):
            return (Rank("group"),)
        if isinstance(atom, Opaque) and MESH.matches(atom.name):
            return (Rank("group", named=last),)
    if last == "rank" and isinstance(atom, Opaque) and _is_called_group(atom):
        return (Rank("group", named=last),)
    return ()


def _is_called_group(atom: Opaque | Symbol) -> bool:
    return GROUP.matches(atom.name) or GROUP_GETTER.matches(atom.name)


def is_of_group(symbol: Symbol, call: Call) -> bool:
    """Whether a function that gives some rank, by its name, gives that in a group: it is a mesh's or is told which."""
    if symbol.last.endswith("local_rank"):
        return bool(call.given) or MESH.matches(symbol.name.rpartition(".")[0])
    given = [*call.args[:1], *(call.keywords[name] for name in ("group", "process_group") if name in call.keywords)]
    return any(
        isinstance(atom, (Group, Mesh)) or (isinstance(atom, (Opaque, Symbol)) and _is_called_group(atom))
        for value in given
        for atom in bare(value)
    )


_ALIKE: Value = (Opaque("", (), True),)
_BY_DIMENSION = "mesh_dim"

DECLARED = (
    api("get_rank", _get_rank, within="torch.distributed", parameters="group", fact=facts.GroupRank),
    api("get_group_rank", within="torch.distributed", result=(Rank("group"),)),
    api("get_world_size", _get_world_size, within="torch.distributed", parameters="group"),
    api("DeviceMesh from_group", makes=Mesh, within="torch.distributed"),
    method("get_rank", of=Mesh, result=(Rank("global"),)),
    method("get_local_rank", _rank_in_mesh, of=Mesh, parameters=_BY_DIMENSION, fact=facts.GroupRank),
    method("get_coordinate", _coordinate, of=Mesh, fact=facts.GroupRank),
    method("size", _size, of=Mesh),
    method("get_group", _group, of=Mesh, parameters=_BY_DIMENSION),
    method("get_all_groups", _groups, of=Mesh),
    method("_flatten _unflatten", of=Mesh, on="mesh", result="mesh"),
    api([f"{group}.rank" for group in _DEFAULT_GROUP], result=(Rank("global"),)),
    api([f"{group}.size" for group in _DEFAULT_GROUP], result=(WorldSize(),)),
    method("rank", _rank_in_group, of=Group, fact=facts.GroupRank),
    method("size", of=Group, result=(WorldSize(group=True),)),
    Attributes(Mesh, dict.fromkeys(("ndim", "shape", "mesh_dim_names", "device_type"), _ALIKE)),
)
