"""An evaluation counts the samples that a DistributedSampler repeats.

## What it does
Looks for a loader with a `DistributedSampler` of torch over which the model is evaluated without gradients, and for
numbers summed up over its batches that a collective puts together and nothing cuts to the length of the data set. Data
sets that draw a sample whatever their index are left alone. In a run, it adds up what all ranks were given in such an
evaluation, and looks for that number among what the ranks then add up themselves.

## Why is this bad?
So that each rank gets as many samples, the sampler repeats some. Where they are counted twice, accuracy and loss are
not those of the data set, and change with the number of GPUs.

## Example
```python
sampler = DistributedSampler(test_data, shuffle=False)
...
dist.all_reduce(correct)
dist.all_reduce(total)  # 10,008 on 16 ranks, of 10,000 samples
```

## Use instead
Leave the repeated ones out, or let the ranks have unequal shares where no collective is called for each batch:
```python
mine = Subset(test_data, range(rank, len(test_data), world_size))
loader = DataLoader(mine, batch_size=256)
```

## References
- [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
- [torchmetrics](https://lightning.ai/docs/torchmetrics/stable/pages/overview.html#metrics-in-distributed-data-parallel-ddp-mode)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.metrics import REDUCED, TRIMMED
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import BatchSampler, Loader, Sampler, Subset
from validate_ddp.interpreter.values import (
    Const,
    Function,
    Instance,
    Rank,
    Value,
    WorldSize,
    bare,
    constant,
    reaching,
)
from validate_ddp.models.data import distributed_samplers
from validate_ddp.record.evaluations import evaluations, reduced
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Note, Observation, Seen, Well
from validate_ddp.rules.evaluating import is_evaluation, summed_over
from validate_ddp.rules.proposing import place, propose
from validate_ddp.source.syntax import FunctionDef
from validate_ddp.source.traversal import is_name, walk

TRIGGER = facts.Iterate
SEVERITIES = (WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"

HEAD = """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    held_out = TensorDataset(torch.randn(61, 4), torch.randint(3, (61,)))
    model = DDP(torch.nn.Linear(4, 3))

    @torch.no_grad()
    def evaluate(model, loader):
        model.eval()
        counts = torch.zeros(2)
        for x, y in loader:
            counts[0] += (model(x).argmax(1) == y).sum()
            counts[1] += len(y)
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()
"""
VALID = (
    """
    sampler = DistributedSampler(held_out, shuffle=False)
    batches = torch.utils.data.BatchSampler(sampler, 8, drop_last=True)
    accuracy = evaluate(model, DataLoader(held_out, batch_sampler=batches))
    if rank == 0:
        print(accuracy)
    """,
    """
    sampler = DistributedSampler(held_out, shuffle=False, drop_last=True)
    accuracy = evaluate(model, DataLoader(held_out, batch_size=8, sampler=sampler))
    if rank == 0:
        print(accuracy)
    """,
    """
    mine = torch.utils.data.Subset(held_out, range(rank, len(held_out), dist.get_world_size()))
    accuracy = evaluate(model, DataLoader(mine, batch_size=8))
    if rank == 0:
        print(accuracy)
    """,
    """
    loader = DataLoader(held_out, batch_size=8, sampler=DistributedSampler(held_out, shuffle=False))
    hits = []
    with torch.no_grad():
        for x, y in loader:
            hits.append(model(x).argmax(1) == y)
    hits = torch.cat(hits)
    whole = [torch.empty_like(hits) for _ in range(dist.get_world_size())]
    dist.all_gather(whole, hits)
    accuracy = torch.stack(whole, dim=1).flatten()[: len(held_out)].float().mean()
    if rank == 0:
        print(accuracy)
    """,
    """
    from samplers_of_ours import DistributedSampler

    loader = DataLoader(held_out, batch_size=8, sampler=DistributedSampler(held_out, shuffle=False))
    accuracy = evaluate(model, loader)
    if rank == 0:
        print(accuracy)
    """,
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(held_out)
    total = torch.zeros(1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(held_out, batch_size=8, sampler=sampler):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
    dist.all_reduce(total)
    if rank == 0:
        print(total.item())
    """,
    """
    size = dist.get_world_size()
    even = torch.utils.data.Subset(held_out, range(len(held_out) // size * size))
    loader = DataLoader(even, batch_size=8, sampler=DistributedSampler(even, shuffle=False))
    accuracy = evaluate(model, loader)
    if rank == 0:
        print(accuracy)
    """,
    """
    loader = DataLoader(held_out, batch_size=8, sampler=DistributedSampler(held_out, shuffle=False))
    counts, seen = torch.zeros(2), 0
    with torch.no_grad():
        for x, y in loader:
            own = (seen + torch.arange(len(y))) * dist.get_world_size() + rank < len(held_out)
            seen += len(y)
            counts[0] += ((model(x).argmax(1) == y) & own).sum()
            counts[1] += own.sum()
    dist.all_reduce(counts)
    if rank == 0:
        print((counts[0] / counts[1]).item())
    """,
    """
    class Windows(torch.utils.data.Dataset):
        def __len__(self):
            return 61

        def __getitem__(self, index):
            return held_out[torch.randint(61, (1,)).item()]

    windows = Windows()
    loader = DataLoader(windows, batch_size=8, sampler=DistributedSampler(windows, shuffle=False))
    accuracy = evaluate(model, loader)
    if rank == 0:
        print(accuracy)
    """,
)
INVALID = (
    """
    class Windows(torch.utils.data.Dataset):
        def __len__(self):
            return 61

        def __getitem__(self, index):
            return held_out[index]

    windows = Windows()
    loader = DataLoader(windows, batch_size=8, sampler=DistributedSampler(windows, shuffle=False))  # expect
    accuracy = evaluate(model, loader)
    if rank == 0:
        print(accuracy)
    """,
    """
    sampler = DistributedSampler(held_out, shuffle=False)  # expect
    accuracy = evaluate(model, DataLoader(held_out, batch_size=8, sampler=sampler))
    if rank == 0:
        print(f"accuracy {accuracy:.3f}")
    """,
    """
    best = 0.0
    loader = DataLoader(held_out, batch_size=8, sampler=DistributedSampler(held_out))  # expect
    for epoch in range(3):
        accuracy = evaluate(model, loader)
        if accuracy > best:
            best = accuracy
            if rank == 0:
                torch.save(model.module.state_dict(), "best.pt")
    """,
    """
    def loader_of(dataset):
        return DataLoader(dataset, 8, sampler=DistributedSampler(dataset, shuffle=False, drop_last=False))  # expect

    losses, seen = torch.zeros(1), torch.zeros(1)
    with torch.no_grad():
        for x, y in loader_of(held_out):
            losses += F.cross_entropy(model(x), y, reduction="sum")
            seen += y.size(0)
    dist.reduce(losses, 0)
    dist.reduce(seen, 0)
    if rank == 0:
        print((losses / seen).item())
    """,
    """
    sampler = DistributedSampler(held_out, shuffle=False)  # expect
    batches = torch.utils.data.BatchSampler(sampler, 8, drop_last=False)
    accuracy = evaluate(model, DataLoader(held_out, batch_sampler=batches))
    if rank == 0:
        print(accuracy)
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each sampler, at the sampler."""
    if not program.is_distributed:
        return
    made = {id(atom): fact for fact in program.facts(facts.Sampler) for atom in fact.sampler}
    iterates, told = program.facts(facts.Iterate), set[int]()
    for iterate in iterates:
        sampler = _repeating(iterate.loader[0])
        fact = made.get(id(sampler))
        if fact is None or id(sampler) in told or not program.runs_on_many(iterate):
            continue
        counts = _counts(program, iterate) if is_evaluation(program, iterate, iterates) else []
        if not counts:
            continue
        told.add(id(sampler))
        use, together = min(counts, key=lambda row: not row[1])
        yield propose(
            program,
            fact,
            WARNING if together else INFO,
            "where the ranks do not divide the number of samples, this sampler repeats some, and the evaluation counts "
            "them twice: its numbers change with the number of GPUs",
            evidence=[
                place(iterate.site, "each rank evaluates its share here"),
                place(use.site, "the number is used here"),
            ],
        )


def _repeating(loader: Loader) -> Sampler | None:
    """The one sampler that the loader surely has, where that repeats samples and all of them are given out."""
    samplers = distributed_samplers((loader,))
    if len(samplers) != 1 or len(bare(loader.sampler + loader.batch_sampler)) != 1 or loader.derived:
        return None
    own = samplers[0]
    dropping = [loader.drop_last]
    if loader.batch_sampler:
        by = loader.batch_sampler[0]
        dropping = [by.drop_last or (Const(...),)] if isinstance(by, BatchSampler) else [(Const(...),)]
    kept = all(not each or constant(each) is False for each in dropping)
    repeats = kept and not own.even and not own.derived and not _is_divided(own.dataset)
    return own if repeats and not _is_drawn(own.dataset) else None


def _is_drawn(dataset: Value) -> bool:
    """Whether a sample is another one each time it is asked for, whatever its index: none is counted twice then."""
    atoms = bare(dataset)
    if len(atoms) == 1 and isinstance(atoms[0], Subset):
        return _is_drawn(atoms[0].dataset)
    return bool(atoms) and all(isinstance(atom, Instance) and _takes_no_index(atom) for atom in atoms)


def _takes_no_index(instance: Instance) -> bool:
    """Whether the method that gives a sample does not look at which one is asked for."""
    found = bare(instance.cls.find("__getitem__")[0] or ())
    node = found[0].node if len(found) == 1 and isinstance(found[0], Function) else None
    if not isinstance(node, FunctionDef) or node.decorator_list or node.args.vararg or len(node.args.parameters) != 2:
        return False
    return not any(is_name(part, node.args.parameters[1].name) for part in walk(node.body))


def _is_divided(dataset: Value) -> bool:
    """Whether it may be cut so that the ranks divide it: ``Subset(data, range(len(data) // size * size))``."""
    held = [part for atom in bare(dataset) if isinstance(atom, Subset) for part in reaching(atom.indices)]
    return any(isinstance(part, WorldSize) for part in held)


def _counts(program: Program, iterate: facts.Iterate) -> list[tuple[Fact, bool]]:
    """Where numbers of all batches are used, and whether a collective has put them together."""
    found: list[tuple[Fact, bool]] = []
    for fact in program.facts(facts.Report, facts.Decision):
        parts = [part for row in summed_over(fact.value, iterate) for part in row]
        own = any(isinstance(part, Rank) for part in parts) and REDUCED not in parts
        if parts and TRIMMED not in parts and not own:
            found.append((fact, REDUCED in parts))
    return found


def observe(run: Run) -> Seen:
    """Only where a sum of the ranks is the number with the repeated ones: what is cut off before it counts is right."""
    for of_ranks in evaluations(run):
        first = of_ranks[0]
        length = first.loader.length
        whole = all(each.turn.exhausted and each.sampler is not None for each in of_ranks)
        if not whole or length is None or first.sampler is None:
            continue
        given = sum(each.size for each in of_ranks)
        sums = [(event, got) for event, _, got in reduced(first.following) if event.reduce == "SUM"]
        for event, got in sums:
            if given > length and given in got:
                message = (
                    f"the ranks count {given} samples together, of a data set of {length}: the sampler repeats "
                    f"{given - length}, so that each rank gets as many"
                )
                site = first.sampler.site
                note = Note(event.site, "they are added up here")
                ranks = tuple(each.rank for each in of_ranks)
                yield Observation(WARNING, site, message, (note,), ranks)
            elif length in got:
                yield Well()
