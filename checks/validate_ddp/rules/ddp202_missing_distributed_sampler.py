"""The training DataLoader of a distributed script is not sharded.

## What it does
Looks for a loader that feeds the forward of a DistributedDataParallel model in a training loop, and whose data is not
split between the ranks in any way: no distributed sampler, no slice or seed by rank, no `prepare`.

## Why is this bad?
Every rank then goes through the whole data set. With equal seeds all ranks compute the same batch, and N GPUs do the
work of one; with different seeds an epoch visits each sample N times. Nothing fails, and the loss looks fine.

## Example
```python
loader = DataLoader(dataset, batch_size=32, shuffle=True)
model = DistributedDataParallel(model)
```

## Use instead
```python
loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
```

## Fix safety
The fix gives the loader a `DistributedSampler` of its data set, which shuffles as the loader did. It is offered where
data set and `shuffle` are plainly written and every run starts a process group. It is unsafe: steps an epoch become
fewer by the number of ranks, and schedules that count them change. The epoch loop then needs `set_epoch` (DDP201).

## References
- [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import ERROR, Edit, Fix, Proposal
from validate_ddp.interpreter.facts import Fact
from validate_ddp.interpreter.sameness import differs_by_rank
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Const, Instance, OnRanks, Opaque, Resource, Site, Value, bare
from validate_ddp.rules.proposing import place, propose

TRIGGER = "loader"
SEVERITIES = (ERROR,)
EVIDENCE = "SR"
FIX = "unsafe"

HEAD = """
    from torch.utils.data import RandomSampler, Subset

    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(1, 1))

    def train(loader):
        for epoch in range(2):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for batch in loader:
                model(batch).sum().backward()
"""
VALID = (
    """
    train(DataLoader(torch.ones(8, 1), sampler=DistributedSampler(torch.ones(8, 1))))
    """,
    """
    data = torch.ones(8, 1)
    mine = Subset(data, range(dist.get_rank(), 8, dist.get_world_size()))
    train(DataLoader(mine, shuffle=True))
    """,
    """
    train(DataLoader(torch.ones(8, 1), sampler=DistributedSampler(torch.ones(8, 1))))
    with torch.no_grad():
        for batch in DataLoader(torch.ones(8, 1)):
            model(batch)
    """,
)
INVALID = (
    """
    train(DataLoader(torch.ones(8, 1), shuffle=True))  # expect
    """,
    """
    class Data(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.ones(1)

    def build():
        return DataLoader(Data(), batch_size=2, shuffle=False)  # expect

    train(build())
    """,
    """
    data = torch.ones(8, 1)
    train(DataLoader(data, sampler=RandomSampler(data)))  # expect
    """,
    """
    def endless(loader):
        while True:
            yield from loader

    batches = endless(DataLoader(torch.ones(8, 1), shuffle=True))  # expect
    for step in range(100):
        model(next(batches)).sum().backward()
    """,
    """
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(torch.nn.Linear(1, 1))
    for epoch in range(2):
        for batch in DataLoader(torch.ones(8, 1), shuffle=True):  # expect
            net(batch).sum().backward()
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each loader that surely trains the wrapped model with unsharded data."""
    if any(differs_by_rank(fact.value("seed")) for fact in program.facts("seed")):
        return  # each rank draws its own stream
    trained = _training_inputs(program)
    reported: set[Any] = set()
    for fact in program.facts("loader"):
        loader = fact.value("loader")[0]
        if loader.site not in trained or fact.site in reported:
            continue
        reported.add(fact.site)
        forward = trained[loader.site]
        evidence = [place(site, "the model is wrapped here") for site in _wrapped_at(program, forward)[:1]]
        yield propose(
            program,
            fact,
            ERROR,
            "this training DataLoader is not split between the ranks: every rank goes through the whole data set",
            evidence=[*evidence, place(forward.site, "and trained on it here")],
            fix=_fix(program, fact),
        )


def _wrapped_at(program: Program, forward: Fact) -> list[Site]:
    models = bare(forward.value("model"))
    wrappers = [atom.site for atom in models if isinstance(atom, Resource)]
    shards = [fact.site for fact in program.facts("shard") if any(fact.value("model") == (atom,) for atom in models)]
    return wrappers or shards


def _fix(program: Program, fact: Fact) -> Fix | None:
    from validate_ddp.interpreter.surroundings import call_at, dotted, written
    from validate_ddp.rules.edits import always_initialised

    path, span = fact.site.path, fact.site.span
    body = program.body(path)
    call = call_at(body, span)
    if call is None or not always_initialised(program) or len(call[2]) > 2:
        return None
    keywords = dict(call[3])
    dataset = dotted(call[2][0] if call[2] else keywords.get("dataset", ["const", None]))
    shuffle = keywords.get("shuffle", ["const", False])
    how = {"True": "", "False": ", shuffle=False"}.get(str(shuffle[1]), "") if shuffle[0] == "const" else None
    if how is None and dotted(shuffle) is not None:
        how = f", shuffle={dotted(shuffle)}"
    if dataset is None or how is None or keywords.keys() & {None, "sampler", "batch_sampler"}:
        return None
    sampler = written(body, "torch.utils.data.distributed.DistributedSampler", fact.site.statement)
    sampler = written(body, "torch.utils.data.DistributedSampler", fact.site.statement) or sampler
    imports: tuple[Edit, ...] = ()
    if sampler is None or sampler.startswith("torch."):
        sampler = "DistributedSampler"
        imports = (Edit("add_import", path, span, "from torch.utils.data import DistributedSampler"),)
    new = f"sampler={sampler}({dataset}{how})"
    edit = Edit("add_argument", path, span, new)
    if "shuffle" in keywords:
        edit = Edit("replace_argument", path, span, f"shuffle, {new}")
    return Fix(f"split the data: `{new}`", False, (*imports, edit))


def _training_inputs(program: Program) -> dict[Any, Fact]:
    """Loaders, by where they are made, over which a wrapped model is run forward in training."""
    if not program.facts("backward"):
        return {}
    found: dict[Any, Fact] = {}
    loops: dict[Any, list[Any]] = {}
    for fact in program.facts("iterate"):
        for atom in bare(fact.value("loader")):
            loops.setdefault((fact.site.path, fact.site.span), []).append(atom)
    trained_in = {(loop.site.path, loop.site.span) for fact in program.facts("backward") for loop in fact.loops}
    sharded = {id(atom) for fact in program.facts("shard") for atom in bare(fact.value("model"))}
    for fact in program.facts("forward"):
        in_place = any(id(atom) in sharded for atom in bare(fact.value("model")))
        if not (fact.name in ("ddp", "fsdp") or in_place) or "no_grad" in fact.flags:
            continue
        for loop in fact.loops:
            place_of = (loop.site.path, loop.site.span)
            if place_of in trained_in:
                drawn_from = loops.get(place_of) or _loaders_of(fact)
                if all(_unsharded(loader) for loader in drawn_from):  # else it is the loader of a single process
                    for loader in drawn_from:
                        found.setdefault(loader.site, fact)
    return found


def _loaders_of(forward: Fact) -> list[Any]:
    """The loaders whose batches go into a forward, where no loop around it draws from one."""
    return [atom for batch in forward.value("inputs") for atom in bare(batch.get("loader"))]


def _unsharded(loader: Resource) -> bool:
    """Whether the loader surely gives each rank all of the data."""
    if loader.get("prepared") or loader.get("open") or loader.get("derived") or loader.get("batch_sampler"):
        return False
    samplers = bare(loader.get("sampler"))
    if any(not _plain(atom) for atom in samplers):
        return False
    return _same(loader.get("dataset")) and all(_whole(atom) for atom in bare(loader.get("dataset")))


def _same(value: Value) -> bool:
    """Whether no rank went into a value, nor into the choice of it."""
    return not differs_by_rank(value) and not any(isinstance(atom, OnRanks) for atom in value)


def _plain(sampler: Any) -> bool:
    return (isinstance(sampler, Const) and sampler.value is None) or (
        isinstance(sampler, Resource) and sampler.kind == "plain_sampler"
    )


def _whole(dataset: Any) -> bool:
    """Whether a data set is surely the same on every rank."""
    if isinstance(dataset, Instance):
        bases = {getattr(base, "last", getattr(base, "name", "")) for base in dataset.cls.lineage()}
        iterable = any("Iterable" in base for base in bases)
        return not iterable and all(_same(value) for value in dataset.fields.values())
    if isinstance(dataset, Resource) and dataset.kind == "subset":
        return all(_same(dataset.get(each)) for each in ("indices", "dataset")) and all(
            _whole(atom) for atom in bare(dataset.get("dataset"))
        )
    if isinstance(dataset, Opaque):
        return not any(word in dataset.name.lower() for word in ("iterable", "web", "shard", "stream"))
    return True
