"""Data is shared out between all ranks, although some of them hold parts of one model and must read the same.

## What it does
Looks for a `DistributedSampler` over all ranks in a program that splits a model's layers over ranks: by
`parallelize_module` with `ColwiseParallel`, `RowwiseParallel` or `SequenceParallel`. A rehearsal compares what the
ranks of such a group call the model with.

## Why is this bad?
The ranks of a tensor parallel group compute one forward together, each with a part of every matrix. What comes out is
right where all of them put the same batch in. With a sampler over all ranks each puts in its own: products of one
batch are added to those of another, and nothing fails.

## Example
```python
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
parallelize_module(model, mesh["tp"], plan)
sampler = DistributedSampler(dataset)
```

## Use instead
```python
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
parallelize_module(model, mesh["tp"], plan)
sampler = DistributedSampler(dataset, num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank())
```

## References
- [Large scale transformer training with tensor parallel](https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.objects import Batch, Sequence, contents
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Mesh
from validate_ddp.interpreter.values import Opaque, Rank, Symbol, Value, WorldSize, bare, constant, reaching
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Note, Observation, Seen, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Partition
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "SR"
FIX = "-"

HEAD = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))

    def train(model, sampler):
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for batch in DataLoader(range(64), sampler=sampler):
                model(batch).sum().backward()
"""
VALID = (
    """
    model = parallelize_module(Net(), mesh["tp"], {"layer": ColwiseParallel()})
    of_data = mesh["dp"]
    train(model, DistributedSampler(range(64), num_replicas=of_data.size(), rank=of_data.get_local_rank()))
    """,
    """
    # The ranks of the group that shares the data out, as the group knows them.
    model = parallelize_module(Net(), mesh["tp"], {"layer": ColwiseParallel()})
    group = mesh.get_group("dp")
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    train(model, DistributedSampler(range(64), num_replicas=size, rank=rank))
    """,
    """
    # Experts lie on ranks that read data of their own.
    from somewhere import ExpertParallel

    model = parallelize_module(Net(), mesh["tp"], ExpertParallel())
    train(model, DistributedSampler(range(64)))
    """,
    """
    # The ranks of a group give each other their batches.
    model = parallelize_module(Net(), mesh["tp"], {"layer": ColwiseParallel()})
    for batch in DataLoader(range(64), sampler=DistributedSampler(range(64), shuffle=False)):
        batches = [torch.empty_like(batch) for _ in range(4)]
        dist.all_gather(batches, batch, group=mesh.get_group("tp"))
        for each in batches:
            model(each).sum().backward()
    """,
    """
    # No part of it is split.
    train(DDP(Net()), DistributedSampler(range(64)))
    """,
)
INVALID = (
    """
    model = parallelize_module(Net(), mesh["tp"], {"layer": ColwiseParallel()})
    train(model, DistributedSampler(range(64)))  # expect
    """,
    """
    model = Net()
    parallelize_module(module=model, device_mesh=mesh["tp"], parallelize_plan=ColwiseParallel())
    size, rank = dist.get_world_size(), dist.get_rank()
    train(model, DistributedSampler(range(64), num_replicas=size, rank=rank))  # expect
    """,
    """
    plan = {"layer": ColwiseParallel(use_local_output=False)}
    parallel = int(os.environ["PARALLEL"])
    model = Net()
    if parallel > 1:
        model = parallelize_module(model, init_device_mesh("cpu", (parallel,)), plan)
    train(model, DistributedSampler(range(64)))  # expect
    """,
)
_OF_LAYERS = frozenset({"ColwiseParallel", "RowwiseParallel", "SequenceParallel"})


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each sampler over all ranks."""
    split = next(
        (fact for fact in program.facts(facts.Partition) if fact.name == "parallelize_module" and _is_of_layers(fact)),
        None,
    )
    if split is None or _is_passed_round(program):
        return
    reported = set()
    for fact in program.facts(facts.Sampler):
        if fact.site in reported or fact.who != "all" or not _is_over_all(fact) or fact.flags & _APART:
            continue
        reported.add(fact.site)
        known = not fact.hangs_on_unknown and not split.hangs_on_unknown and _has_several(split)
        yield propose(
            program,
            fact,
            ERROR if known else WARNING,
            "this sampler gives every rank data of its own, but the ranks that hold parts of one layer must read the "
            "same: give it the size of the data parallel dimension and the rank in that",
            evidence=[place(split.site, "layers are split over ranks here")],
        )


def _is_passed_round(program: Program) -> bool:
    """Whether the ranks of a group give each other their batches, and so all read the same after all."""
    return any(
        isinstance(part, Batch)
        for fact in program.facts(facts.Collective)
        if any(word in fact.name for word in _PASSING)
        for part in reaching(fact.arguments)
    ) or any(fact.name == "distribute_tensor" and fact.loops for fact in program.facts(facts.Partition))


_PASSING = ("gather", "broadcast", "scatter", "all_to_all")
_APART = frozenset({Flag.ALONE})


def _is_of_layers(fact: facts.Partition) -> bool:
    """Whether matrices are surely cut up: each of the group's ranks has a part, and all compute one product."""
    held = [*bare(fact.plan), *contents(fact.plan)]
    return any(
        isinstance(atom, (Opaque, Symbol)) and atom.name.removesuffix("()").rpartition(".")[2] in _OF_LAYERS
        for atom in held
    )


def _is_over_all(fact: facts.Sampler) -> bool:
    """Whether it shares out between all ranks, as it does where neither is given."""
    size, rank = bare(fact.num_replicas), bare(fact.rank)
    return all(isinstance(atom, WorldSize) and not atom.local and not atom.named for atom in size) and all(
        isinstance(atom, Rank) and atom.scope == "global" and atom.sure for atom in rank
    )


def _has_several(fact: facts.Partition) -> bool:
    """Whether the mesh surely has more than one rank: a program of several ranks wrote down its shape."""
    meshes = bare(fact.mesh)
    return bool(meshes) and all(isinstance(atom, Mesh) and _all_above_one(atom.shape) for atom in meshes)


def _all_above_one(shape: Value) -> bool:
    sizes = [constant(part) for atom in bare(shape) if isinstance(atom, Sequence) for part in atom.fields.values()]
    return bool(sizes) and all(isinstance(size, int) and size > 1 for size in sizes)


def observe(run: Run) -> Seen:
    """Of each group of ranks that hold parts of the same layers, whether its first batches were the same on all."""
    parted = {
        tuple(event.ranks): event for _, event in run.each(protocol.Parted) if not _OF_LAYERS.isdisjoint(event.by)
    }
    for group, event in parted.items():
        given = [_batches(run, rank) for rank in group if rank in run.ranks]
        rows = list(zip(*given, strict=False)) if 1 < len(given) == len(group) else []
        differing = [len({tuple(batch.inputs) for batch in row}) > 1 for row in rows]
        if rows and all(differing):
            site = rows[0][0].site or event.site
            message = (
                f"ranks {', '.join(map(str, group))} hold parts of the same layers, and call the model with different "
                "data: give each of them the batch of its rank in the data parallel dimension"
            )
            yield Observation(WARNING, site, message, (Note(event.site, "the layers are split here"),), group)
        elif rows and not any(differing):
            yield Well()
        else:
            yield Unclear()


def _batches(run: Run, rank: int) -> list[protocol.Called]:
    """The first calls of models in training, of which all inputs are known."""
    return [
        event
        for event in run.of(rank, protocol.Called)
        if event.training and event.grad and event.inputs and None not in event.inputs
    ]
