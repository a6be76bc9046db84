"""torch.utils.data: samplers and loaders."""

from __future__ import annotations

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.rows import Base, api
from validate_ddp.interpreter.training import BatchSampler, Loader, PlainSampler, Sampler, Subset
from validate_ddp.interpreter.values import (
    TRUE,
    Class,
    Const,
    Function,
    Instance,
    Opaque,
    Symbol,
    Value,
    bare,
    constant,
)
from validate_ddp.models import randomness, unknown
from validate_ddp.source.syntax import Assign, Attribute, FunctionDef, Statement
from validate_ddp.source.traversal import bodies_of

_OF_LOADER = "dataset batch_size shuffle sampler batch_sampler"


def _distributed_sampler(machine: Machine, symbol: Symbol, call: Call) -> Value:
    if constant(call.value("num_replicas")) == 1:  # one replica shares nothing
        return (PlainSampler(call.site, dataset=call.argument(0)),)
    shuffle = call.value("shuffle") or ((Const(True),) if not call.open else ())
    sampler = Sampler(call.site, dataset=call.value("dataset"), shuffle=shuffle)
    if Flag.CONDITIONAL in machine.flags:
        sampler.conditional = (Const(True),)
    dropping = call.value("drop_last")
    if call.open or not symbol.name.startswith("torch.") or (dropping and constant(dropping) is not False):
        sampler.even = TRUE
    if symbol.name.startswith("torch.") and call.name not in ("", "__init__"):
        replicas, rank = call.value("num_replicas"), call.value("rank")
        seed = call.value("seed")
        made = facts.Sampler(
            "DistributedSampler", sampler=(sampler,), shuffle=shuffle, num_replicas=replicas, rank=rank, seed=seed
        )
        machine.record(made, call.site)
    return (sampler,)


def _methods(cls: Class) -> dict[str, FunctionDef]:
    """The methods that are written in the program, by name."""
    return {
        name: atom.node
        for base in reversed(cls.lineage())
        if isinstance(base, Class)
        for name, member in base.members.items()
        for atom in bare(member)
        if isinstance(atom, Function) and isinstance(atom.node, FunctionDef)
    }


def epoch_setters(cls: Class) -> frozenset[str]:
    """The methods by which a class derived from a sampler sets its epoch in a way of its own, as one that sets parts of
    an epoch too."""
    return frozenset(name for name, node in _methods(cls).items() if name != "__init__" and _sets_epoch(node.body))


def _sets_epoch(body: list[Statement]) -> bool:
    return any(
        (isinstance(node, Assign) and any(isinstance(t, Attribute) and t.attr == "epoch" for t in node.targets))
        or any(map(_sets_epoch, bodies_of(node)))
        for node in body
    )


def deals_by_itself(cls: Class) -> bool:
    """Whether a class derived from a sampler draws an order of its own, on which ``set_epoch`` has no effect."""
    methods = {name: node.words for name, node in _methods(cls).items()}
    if "__iter__" not in methods or "super" in methods["__iter__"] or "set_epoch" in methods:
        return False
    return not any("epoch" in names for name, names in methods.items() if name != "__init__")


def _loader(machine: Machine, symbol: Symbol, call: Call) -> Value:
    fields = {name: call.value(name) for name in _OF_LOADER.split()}
    loader = Loader(call.site, **{name: value for name, value in fields.items() if value})
    for name in ("worker_init_fn", "generator", "collate_fn"):
        if name in call.keywords:
            loader.fields[name] = call.keywords[name]
    if "worker_init_fn" in call.keywords:
        randomness.seed_workers(machine, call)
    if call.open:
        loader.open = (Const(True),)
    machine.record(facts.Loader(symbol.last, loader=(loader,), **loader.fields), call.site)
    for name in ("drop_last", "num_workers"):
        if name in call.keywords:
            loader.fields[name] = call.keywords[name]
    return (loader,)


def distributed_samplers(value: Value) -> list[Sampler]:
    """The torch DistributedSamplers that ``value`` is or draws from."""
    found: list[Sampler] = []
    for atom in bare(value):
        source = atom.base if isinstance(atom, Instance) else atom
        if isinstance(source, Sampler):
            found.append(source)
        elif isinstance(source, BatchSampler):
            found.extend(distributed_samplers(source.sampler))
        elif isinstance(source, Loader):
            found.extend(distributed_samplers(source.sampler + source.batch_sampler))
    return found


def streams(dataset: Value) -> bool:
    """Whether a data set surely is an ``IterableDataset``: a loader that is given a sampler for one raises."""
    atoms = bare(dataset)
    return bool(atoms) and all(
        isinstance(atom, Instance) and "IterableDataset" in {getattr(base, "last", "") for base in atom.cls.lineage()}
        for atom in atoms
    )


def _derived(machine: Machine, base: Symbol, call: Call, cls: Class | None) -> Loader | Sampler | PlainSampler | None:
    """The loader or sampler that an instance of a class of the program is."""
    if base.last not in ("DataLoader", "DistributedSampler") or not machine.registry.knows(base.name):
        return None
    for atom in bare(machine.registry.call_symbol(machine, base, call)):
        if isinstance(atom, (Loader, Sampler, PlainSampler)):
            atom.derived = (Opaque("derived"),)
            if isinstance(atom, Sampler) and cls is not None:
                machine.epoch_setters |= epoch_setters(cls)
                if deals_by_itself(cls):
                    atom.own_order = TRUE
            return atom
    return None


DECLARED = (
    api(
        "DistributedSampler",
        _distributed_sampler,
        within="*",
        parameters="dataset num_replicas rank shuffle seed drop_last",
        fact=facts.Sampler,
    ),
    api("DistributedSampler", unknown.unresolved, within="catalyst"),
    api(
        "DataLoader StatefulDataLoader",
        _loader,
        within="torch torchdata monai",
        parameters=_OF_LOADER,
        fact=facts.Loader,
    ),
    api(
        "DataLoaderX MultiEpochsDataLoader FastDataLoader",
        _loader,
        within="*",
        parameters=_OF_LOADER,
        fact=facts.Loader,
    ),
    api(
        "RandomSampler SequentialSampler WeightedRandomSampler",
        within="torch",
        parameters="dataset=",
        makes=PlainSampler,
    ),
    api("BatchSampler", within="torch", parameters="sampler * drop_last", makes=BatchSampler),
    api("Subset", within="torch", parameters="dataset= indices=", makes=Subset),
    Base(_derived),
)
