"""torch.utils.data: samplers and loaders."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.registry import Base, api
from validate_ddp.interpreter.surroundings import bodies_of
from validate_ddp.interpreter.values import (
    TRUE,
    Class,
    Const,
    Function,
    Opaque,
    Resource,
    Symbol,
    Value,
    bare,
    constant,
)
from validate_ddp.models import randomness, unknown

_LOADER_ARGUMENTS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")


def _distributed_sampler(machine: Machine, symbol: Symbol, call: Call) -> Value:
    if constant(call.argument(1, "num_replicas")) == 1:
        return _plain_sampler(machine, symbol, call)  # one replica shares nothing
    shuffle = call.argument(3, "shuffle") or ((Const(True),) if not call.open else ())
    sampler = Resource("sampler", call.site, {"dataset": call.argument(0, "dataset"), "shuffle": shuffle})
    if "conditional" in machine.flags:
        sampler.fields["conditional"] = (Const(True),)
    if symbol.name.startswith("torch.") and call.name not in ("", "__init__"):
        ranks = {"num_replicas": call.argument(1, "num_replicas"), "rank": call.argument(2, "rank")}
        machine.record("sampler", "DistributedSampler", call.site, sampler=(sampler,), shuffle=shuffle, **ranks)
    return (sampler,)


def _methods(cls: Class) -> dict[str, list[Any]]:
    """The methods that are written in the program, by name."""
    return {
        name: atom.node
        for base in reversed(cls.lineage())
        if isinstance(base, Class)
        for name, member in base.members.items()
        for atom in bare(member)
        if isinstance(atom, Function) and atom.node[0] == "def"
    }


def epoch_setters(cls: Class) -> frozenset[str]:
    """The methods by which a class derived from a sampler sets its epoch in a way of its own, as one that sets parts of
    an epoch too."""
    return frozenset(name for name, node in _methods(cls).items() if name != "__init__" and _sets_epoch(node[4]))


def _sets_epoch(body: list[Any]) -> bool:
    return any(
        (node[0] == "assign" and any(target[0] == "attr" and target[2] == "epoch" for target in node[2]))
        or any(map(_sets_epoch, bodies_of(node)))
        for node in body
    )


def deals_by_itself(cls: Class) -> bool:
    """Whether a class derived from a sampler draws an order of its own, on which ``set_epoch`` has no effect."""
    methods = {name: node[7] for name, node in _methods(cls).items()}
    if "__iter__" not in methods or "super" in methods["__iter__"] or "set_epoch" in methods:
        return False
    return not any("epoch" in names for name, names in methods.items() if name != "__init__")


def _loader(machine: Machine, symbol: Symbol, call: Call) -> Value:
    fields = {name: call.argument(index, name) for index, name in enumerate(_LOADER_ARGUMENTS)}
    loader = Resource("loader", call.site, {name: value for name, value in fields.items() if value})
    for name in ("worker_init_fn", "generator"):
        if name in call.keywords:
            loader.fields[name] = call.keywords[name]
    if "worker_init_fn" in call.keywords:
        randomness.seed_workers(machine, call)
    if call.open:
        loader.fields["open"] = (Const(True),)
    machine.record("loader", symbol.last, call.site, loader=(loader,), **loader.fields)
    return (loader,)


def _plain_sampler(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Resource("plain_sampler", call.site, {"dataset": call.argument(0)}),)


def _batch_sampler(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Resource("batch_sampler", call.site, {"sampler": call.argument(0, "sampler")}),)


def _subset(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Resource("subset", call.site, {"dataset": call.argument(0), "indices": call.argument(1)}),)


def distributed_samplers(value: Value) -> list[Resource]:
    """The torch DistributedSamplers that ``value`` is or draws from."""
    found = []
    for atom in bare(value):
        base = getattr(atom, "base", None)
        if isinstance(base, Resource):
            atom = base
        if isinstance(atom, Resource):
            if atom.kind == "sampler":
                found.append(atom)
            elif atom.kind == "batch_sampler":
                found.extend(distributed_samplers(atom.get("sampler")))
            elif atom.kind == "loader":
                found.extend(distributed_samplers(atom.get("sampler") + atom.get("batch_sampler")))
    return found


def _derived(machine: Machine, base: Symbol, call: Call, cls: Class | None) -> Resource | None:
    """The loader or sampler that an instance of a class of the program is."""
    if base.last not in ("DataLoader", "DistributedSampler") or not machine.registry.knows(base.name):
        return None
    for atom in bare(machine.registry.call_symbol(machine, base, call)):
        if isinstance(atom, Resource):
            atom.fields["derived"] = (Opaque("derived"),)
            if atom.kind == "sampler" and cls is not None:
                machine.epoch_setters |= epoch_setters(cls)
                if deals_by_itself(cls):
                    atom.fields["own_order"] = TRUE
            return atom
    return None


DECLARED = (
    api("DistributedSampler", _distributed_sampler, within="*", fact="sampler"),
    api("DistributedSampler", unknown.unresolved, within="catalyst"),
    api("DataLoader StatefulDataLoader", _loader, within="torch torchdata monai", fact="loader"),
    api("DataLoaderX MultiEpochsDataLoader FastDataLoader", _loader, within="*", fact="loader"),
    api("RandomSampler SequentialSampler WeightedRandomSampler", _plain_sampler, within="torch"),
    api("BatchSampler", _batch_sampler, within="torch"),
    api("Subset", _subset, within="torch"),
    Base(_derived),
)
