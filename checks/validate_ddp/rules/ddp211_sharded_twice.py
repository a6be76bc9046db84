"""The data is shared out twice: each rank trains on a share of its share.

## What it does
Reading, looks for a loader that Accelerate prepares or that has a `DistributedSampler`, and whose data are a
`dataset.shard(...)` or `split_dataset_by_node(...)` of the rank, or a `Subset` by it; for one that is prepared, and
whose data set, of the program, gives every N-th item from the rank's on, or what is in a slice of files by the rank;
for one that has such a sampler and is prepared; and for one whose data set does so, and goes through another one that
has done so before.

A rehearsal looks, for each loader that the ranks train on, at all that shares the data out between them: a slice by
rank, a `DistributedSampler`, `accelerator.prepare`; and counts the samples that are nobody's.

## Why is this bad?
Each of them alone is right. One on top of the other leaves 1/N of the data on N GPUs, and the rest is never trained on.
An epoch gets as much shorter, which looks like a gain in speed.

## Example
```python
sampler = DistributedSampler(dataset)
loader = accelerator.prepare(DataLoader(dataset, sampler=sampler))
```

## Use instead
```python
loader = accelerator.prepare(DataLoader(dataset, shuffle=True))
```

## References
- [accelerator.prepare](https://huggingface.co/docs/accelerate/package_reference/accelerator)
- [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import ERROR, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import BatchSampler, Loader, Sampler
from validate_ddp.interpreter.values import Rank, bare, constant
from validate_ddp.record.run import Run
from validate_ddp.record.samples import Sharing, has_own_data, sharings, unread
from validate_ddp.record.verdict import Note, Observation, Seen, Telling, Well
from validate_ddp.rules.proposing import place, propose
from validate_ddp.rules.slicing import is_of_shard, share_of_share, sliced_by_rank

TRIGGER = facts.Loader
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "SR"
FIX = "-"
TELLING = Telling(outranks=("DDP202",))

HEAD = """
    from accelerate import Accelerator
"""
TAIL = ""
VALID = (
    """
    # A loader asks it for samples by their numbers.
    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            return torch.full((4,), float(index))

        def __iter__(self):
            for index in range(dist.get_rank(), 64, dist.get_world_size()):
                yield self[index]

    for batch in Accelerator().prepare(DataLoader(Texts())):
        print(batch)
    """,
    """
    # The ranks take turns in telling how far they are.
    class Told(torch.utils.data.IterableDataset):
        def __init__(self, rank):
            self.rank = rank

        def __iter__(self):
            for index in range(64):
                if index % 8 == self.rank:
                    print("at", index)
                yield torch.full((4,), float(index))

    accelerator = Accelerator()
    for batch in accelerator.prepare(DataLoader(Told(accelerator.process_index), batch_size=4)):
        print(batch)
    """,
    """
    accelerator = Accelerator()
    model, loader = accelerator.prepare(Net(), DataLoader(range(64), shuffle=True))
    for batch in loader:
        accelerator.backward(model(batch).sum())
    """,
    """
    # The model alone is prepared.
    accelerator = Accelerator()
    model = accelerator.prepare(Net())
    sampler = DistributedSampler(range(64))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in DataLoader(range(64), sampler=sampler):
            accelerator.backward(model(batch).sum())
    """,
    """
    # Fabric leaves a loader alone that has such a sampler.
    from lightning.fabric import Fabric

    fabric = Fabric(devices=2)
    fabric.launch()
    loader = fabric.setup_dataloaders(DataLoader(range(64), sampler=DistributedSampler(range(64), shuffle=False)))
    for batch in loader:
        print(batch)
    """,
    """
    # One share of all: a sampler of one replica, or a shard alone.
    from datasets import load_dataset

    accelerator = Accelerator()
    sampler = DistributedSampler(range(64), num_replicas=1, rank=0)
    for batch in accelerator.prepare(DataLoader(range(64), sampler=sampler)):
        print(batch)
    data = load_dataset("text").shard(num_shards=accelerator.num_processes, index=accelerator.process_index)
    for batch in DataLoader(data):
        print(batch)
    """,
    """
    # By the worker of this process alone; and by rank, where nobody shares it out again.
    class Texts(torch.utils.data.IterableDataset):
        def __init__(self, part, parts):
            self.part, self.parts = part, parts

        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            start, step = (worker.id, worker.num_workers) if worker else (0, 1)
            for index in range(start, 64, step):
                yield torch.full((4,), float(index))

    class Shares(torch.utils.data.IterableDataset):
        def __iter__(self):
            for index in range(dist.get_rank(), 64, dist.get_world_size()):
                yield torch.full((4,), float(index))

    class Files(torch.utils.data.IterableDataset):
        def __init__(self, part=0, parts=1):
            self.files = sorted(os.listdir("texts"))[part::parts]

        def __iter__(self):
            for name in self.files:
                yield torch.full((4,), float(len(name)))

    accelerator = Accelerator()
    for batch in accelerator.prepare(DataLoader(Texts(0, 1))):
        print(batch)
    for batch in accelerator.prepare(DataLoader(Files())):
        print(batch)
    for batch in DataLoader(Shares()):
        print(batch)
    for batch in DataLoader(Files(dist.get_rank(), dist.get_world_size())):
        print(batch)
    """,
    """
    # Shards by epoch, of which every rank reads the same one.
    from datasets import load_dataset

    dist.init_process_group("gloo")
    for epoch in range(3):
        data = load_dataset("text").shard(num_shards=3, index=epoch)
        for batch in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
            print(batch)
    dist.destroy_process_group()
    """,
)
INVALID = (
    """
    class Shards(torch.utils.data.IterableDataset):
        def __iter__(self):
            mine = range(64)[dist.get_rank() :: dist.get_world_size()]
            for index in mine:
                yield torch.full((4,), float(index))

    class Turns(torch.utils.data.IterableDataset):
        def __init__(self, parts):
            self.parts = parts

        def __iter__(self):
            for index, part in enumerate(self.parts):
                if index % dist.get_world_size() == dist.get_rank():
                    yield part

    dist.init_process_group("gloo")
    for batch in DataLoader(Turns(Shards()), batch_size=4):  # expect
        print(batch)
    dist.destroy_process_group()
    """,
    """
    class Texts(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            part, parts = (worker.id, worker.num_workers) if worker else (0, 1)
            part, parts = dist.get_rank() * parts + part, dist.get_world_size() * parts
            for index in range(part, 64, parts):
                yield torch.full((4,), float(index))

    class Turns(torch.utils.data.IterableDataset):
        def __init__(self, rank, size):
            self.rank, self.size = rank, size

        def __iter__(self):
            for index in range(64):
                if index % self.size != self.rank:
                    continue
                yield torch.full((4,), float(index))

    class Files(torch.utils.data.IterableDataset):
        def __init__(self, rank, size):
            self.files = sorted(os.listdir("texts"))[rank::size]

        def __iter__(self):
            for name in self.files:
                yield torch.full((4,), float(len(name)))

    accelerator = Accelerator()
    files = Files(accelerator.process_index, accelerator.num_processes)
    for batch in accelerator.prepare(DataLoader(files, batch_size=4)):  # expect
        print(batch)
    for batch in accelerator.prepare(DataLoader(Texts(), batch_size=4)):  # expect
        print(batch)
    turns = Turns(accelerator.process_index, accelerator.num_processes)
    for batch in accelerator.prepare(DataLoader(turns, batch_size=4)):  # expect
        print(batch)
    """,
    """
    accelerator = Accelerator()
    sampler = DistributedSampler(range(64), shuffle=False)  # expect
    model, loader = accelerator.prepare(Net(), DataLoader(range(64), sampler=sampler))
    for batch in loader:
        accelerator.backward(model(batch).sum())
    """,
    """
    from torch.utils.data import BatchSampler

    accelerator = Accelerator()
    batches = BatchSampler(DistributedSampler(range(64), shuffle=False), 4, True)  # expect
    loader = accelerator.prepare(DataLoader(range(64), batch_sampler=batches))
    for batch in loader:
        print(batch)
    """,
    """
    from datasets import load_dataset

    dist.init_process_group("gloo")
    data = load_dataset("text").shard(num_shards=dist.get_world_size(), index=dist.get_rank())
    for batch in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):  # expect
        print(batch)
    data = torch.utils.data.Subset(range(64), range(dist.get_rank(), 64, dist.get_world_size()))
    for batch in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):  # expect
        print(batch)
    dist.destroy_process_group()
    """,
    """
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    data = split_dataset_by_node(load_dataset("text"), rank=rank, world_size=size)
    for batch in accelerator.prepare(DataLoader(data)):  # expect
        print(batch)
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each sampler by which a share is shared out again."""
    prepared = [
        loader
        for iterate in program.facts(facts.Iterate)
        for loader in iterate.loader
        if loader.prepared and not any(launch.name in _OTHERS for launch in program.facts(facts.Launch))
    ]
    reported = set()
    for fact in program.facts(facts.Sampler):
        if fact.site in reported or constant(fact.num_replicas) == 1 or not program.runs_on_many(fact):
            continue
        if any(isinstance(atom, Rank) and atom.scope in ("group", "node") for atom in bare(fact.rank)):
            continue
        (sampler,) = fact.sampler
        loader = next((each for each in prepared if sampler in _samplers(each)), None)
        if loader is not None:
            reported.add(fact.site)
            alone = len(loader.sampler + loader.batch_sampler) == 1 and not sampler.conditional
            yield propose(
                program,
                fact,
                ERROR if alone and fact.who == "all" and not fact.hangs_on_unknown else WARNING,
                "the data is shared out twice, by this sampler and then by Accelerate's `prepare`: an epoch reads 1/N "
                "of it on N ranks; leave the sampler to `prepare`",
                evidence=[place(loader.site, "this loader is prepared")],
            )
        elif is_of_shard(sampler.dataset):
            reported.add(fact.site)
            yield propose(
                program,
                fact,
                WARNING,
                "the data is shared out twice, by rank and then by this sampler: an epoch reads 1/N of it on N "
                "ranks; keep one of the two",
            )
    for made in program.facts(facts.Loader):
        (loader,) = made.loader
        if made.site in reported:
            continue
        within = share_of_share(loader.dataset)
        if within and program.runs_on_many(made):
            reported.add(made.site)
            yield propose(
                program,
                made,
                WARNING,
                "the data is shared out twice, by rank in this loader's data set and before that in the one that it "
                "goes through: an epoch reads 1/N of it on N ranks; keep one of the two",
                evidence=within,
            )
        elif any(each.site == loader.site and constant(each.prepared) is True for each in prepared):
            yield from _prepared(program, made, loader, reported)


def _prepared(program: Program, made: Any, loader: Loader, reported: set[Any]) -> Iterator[Proposal]:
    """A loader whose data are a share is prepared."""
    sliced = sliced_by_rank(loader.dataset)
    if loader.sampler or loader.batch_sampler or (sliced is None and not is_of_shard(loader.dataset)):
        return
    reported.add(made.site)
    yield propose(
        program,
        made,
        WARNING,
        "the data is shared out twice, by rank and then by Accelerate's `prepare` of this loader: an epoch "
        "reads 1/N of it on N ranks; keep one of the two",
        evidence=[sliced] if sliced is not None else (),
    )


_OTHERS = ("fabric", "deepspeed")
"""Launchers that leave a loader alone which has such a sampler."""


def _samplers(loader: Loader) -> list[Sampler]:
    held = [*bare(loader.sampler), *bare(loader.batch_sampler)]
    held += [atom for each in held if isinstance(each, BatchSampler) for atom in bare(each.sampler)]
    return [atom for atom in held if isinstance(atom, Sampler)]


def observe(run: Run) -> Seen:
    """Only of samplers of torch and Accelerate, of which it is known which share is whose."""
    for sharing in sharings(run):
        levels = sharing.sharding
        if not levels or not all(entry.known for level in levels for entry in level.values()):
            continue
        own = has_own_data(run, sharing)
        ranks = sharing.ranks[:1] if own else sharing.ranks
        if (own or len(levels) > 1) and unread(sharing, ranks):
            loader = next(iter(sharing.loaders.values()))
            notes = (Note(loader.site, "the loader"),) if loader.site.place != sharing.site.place else ()
            message = _message(sharing, own)
            yield Observation(ERROR, sharing.site, message, notes, tuple(sharing.ranks))
        else:
            yield Well()


def _message(sharing: Sharing, own: bool) -> str:
    kinds = [f"`{next(iter(level.values())).kind}`" for level in reversed(sharing.sharding)]
    first = ["a slice of its own on each rank"] if own else []
    by = " and then by ".join([*first, *kinds])
    message = f"the data is shared out twice, by {by}"
    if not sharing.whole:
        return message
    if sharing.own or not own:
        return f"{message}: an epoch reads {len(sharing.counts)} of {sharing.length} samples"
    shares = ", ".join(f"{len(set(read))} of its {sharing.loaders[rank].length}" for rank, read in sharing.read.items())
    return f"{message}: in an epoch the ranks read {shares}"
