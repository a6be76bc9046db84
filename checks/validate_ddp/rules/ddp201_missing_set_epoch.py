"""A shuffling DistributedSampler serves several epochs, and its epoch is never set.

## What it does
Looks for a `DistributedSampler` that shuffles, whose loader is iterated over in a loop of epochs, and on which
`set_epoch` is never called. Where no backward is in sight, so that the loop may be one of inference, where the loader
may have another sampler or none, or where each epoch makes a sampler, perhaps on other data, it is a warning.

Not reported: a loop in which models only run without gradients, or in evaluation mode, a class derived from
`DistributedSampler` with an iterator of its own that never looks at the epoch, and an `IterableDataset`, for which a
loader takes no sampler.

## Why is this bad?
The sampler seeds its permutation with `seed + epoch`. Without `set_epoch` the epoch stays 0: each epoch repeats the
same order, the same batches and the same split between ranks, and the model sees far less variety than was paid for.

## Example
```python
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, sampler=sampler)
for epoch in range(epochs):
    for batch in loader:
        ...
```

## Use instead
```python
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for batch in loader:
        ...
```

## Fix safety
The fix inserts `loader.sampler.set_epoch(epoch)` as the first statement of the epoch loop. It is offered where the
loop's variable counts epochs and the loader or its sampler has a name there; it is safe because the sampler's type is
known.

## References
- [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from validate_ddp.findings import ERROR, WARNING, Edit, Fix, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Loop
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import BatchSampler, Loader, Sampler
from validate_ddp.interpreter.values import Instance, Opaque, Value, bare, constant, reaching
from validate_ddp.models.data import distributed_samplers, streams
from validate_ddp.record.iterations import Reshuffle, reshuffles
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Note, Observation, Seen, Telling, Unclear, Well
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Sampler
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "SR"
FIX = "safe"
TELLING = Telling("another order in each epoch")

VALID = (
    """
    sampler = DistributedSampler(range(8))
    loader = DataLoader(range(8), sampler=sampler)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            print(batch)
    """,
    """
    def train_one_epoch(loader, epoch):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            print(batch)

    loader = DataLoader(range(8), sampler=DistributedSampler(range(8)))
    for epoch in range(3):
        train_one_epoch(loader, epoch)
    """,
    """
    loader = DataLoader(range(8), sampler=DistributedSampler(range(8), shuffle=False))
    for epoch in range(3):
        for batch in loader:
            print(batch)
    single = DataLoader(range(8), sampler=DistributedSampler(range(8)))
    for batch in single:
        print(batch)
    """,
    """
    class Renewed(DataLoader):
        epoch = 0

        def __iter__(self):
            self.sampler.set_epoch(self.epoch)
            self.epoch += 1
            return super().__iter__()

    loader = Renewed(range(8), sampler=DistributedSampler(range(8), shuffle=True))
    for epoch in range(3):
        for batch in loader:
            print(batch)
    """,
    """
    from torch.utils.data import IterableDataset

    class Packed(IterableDataset):
        def __len__(self):
            return 8

        def __iter__(self):
            return iter(range(8))

    data, settings = Packed(), {}
    if len(sys.argv) > 1:
        settings["sampler"] = DistributedSampler(data)
    loader = DataLoader(data, **settings)
    for epoch in range(3):
        for batch in loader:
            print(batch)
    """,
)
INVALID = (
    """
    sampler = DistributedSampler(range(8))  # expect
    loader = DataLoader(range(8), sampler=sampler)
    for epoch in range(3):
        for batch in loader:
            print(batch)
    """,
    """
    class Trainer:
        def __init__(self):
            self.loader = DataLoader(range(8), sampler=DistributedSampler(range(8)))  # expect

        def run_epoch(self, epoch):
            for step, batch in enumerate(self.loader):
                print(epoch, step, batch)

        def fit(self):
            for epoch in range(3):
                self.run_epoch(epoch)

    Trainer().fit()
    """,
    """
    def endless(loader):
        while True:
            for batch in loader:
                yield batch

    batches = endless(DataLoader(range(8), sampler=DistributedSampler(range(8), shuffle=True)))  # expect
    for step in range(100):
        print(next(batches))
    """,
    """
    def endless(loader):
        while True:
            yield from loader

    class Trainer:
        def __init__(self):
            self.net = DDP(Net())
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
            self.batches = endless(DataLoader(range(8), sampler=DistributedSampler(range(8))))  # expect
            self.held_out = endless(DataLoader(range(8), sampler=DistributedSampler(range(8))))

        def step(self, batch):
            self.optimizer.zero_grad()
            self.net(batch).sum().backward()
            self.optimizer.step()

        def fit(self):
            for step in range(100):
                self.step(next(self.batches))
                with torch.no_grad():
                    print(self.net(next(self.held_out)))

    Trainer().fit()
    """,
    """
    def endless(loader):
        while True:
            yield from loader

    batches = endless(DataLoader(range(8), sampler=DistributedSampler(range(8), shuffle=True)))  # expect
    for step in range(100):
        print(next(batches))
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each sampler, at the place where it is made."""
    served = _iterated_by_sampler(program)
    for fact in program.facts(facts.Sampler):
        sampler = fact.sampler[0]
        if constant(fact.shuffle) is False or not fact.shuffle or sampler.own_order:
            continue
        loops = served.get(id(sampler))
        if loops is None or _epoch_is_set(program, sampler):
            continue
        outer = next(loop for loop in loops.loops if loop.counts and not loop.once)
        evidence = [place(outer.site, "this loop runs it again and again"), place(loops.site, "iterated over here")]
        asked = next((atom.site for atom in sampler.asked_for), fact.site)
        if asked.path != fact.site.path:  # a helper of another file makes it; only the caller knows of epochs
            evidence.insert(0, place(fact.site, "the sampler is made here"))
            fact = fact.moved(asked)
        yield propose(
            program,
            fact,
            ERROR if _is_sure(program, fact, loops, outer) else WARNING,
            "`set_epoch` is never called on this shuffling `DistributedSampler`: every epoch repeats the order "
            "of the first",
            evidence=evidence,
            fix=_fix(program, sampler, outer),
            rests_on=(loops,),
        )


def _is_sure(program: Program, fact: facts.Sampler, loops: facts.Iterate, outer: Loop) -> bool:
    """Whether it trains, on what this sampler gives, and on the same data in each epoch."""
    anew = any(loop.serial == outer.serial for loop in fact.loops) and any(map(_is_made, fact.sampler[0].dataset))
    return not anew and bool(program.facts(facts.Backward)) and _is_surely_sampled(loops.loader)


def _is_made(dataset: Any) -> bool:
    """Whether it is what a call gives whose function was not looked into: each time it may be something else."""
    return isinstance(dataset, Opaque) and dataset.name.endswith("()")


def _iterated_by_sampler(program: Program) -> dict[int, facts.Iterate]:
    """For each sampler, an iteration over its loader inside a loop of epochs."""
    served: dict[int, facts.Iterate] = {}
    for fact in program.facts(facts.Iterate):
        if fact.in_epoch_loop and program.trains(fact):
            if any(loader.prepared for loader in fact.loader):
                continue  # Accelerate's and Fabric's loaders set the epoch of their sampler themselves
            made = tuple(atom for atom in bare(fact.loader) if not _is_stream(atom))
            for sampler in distributed_samplers(made):
                served.setdefault(id(sampler), fact)
    return served


def _is_stream(atom: Any) -> bool:
    return isinstance(atom, Loader) and streams(atom.dataset)


def _is_surely_sampled(value: Value) -> bool:
    """Whether each loader that this may be draws from a distributed sampler, whatever the configuration says."""
    return all(
        any(given and all(distributed_samplers((part,)) for part in bare(given)) for given in _samplers_of(atom))
        for atom in bare(value)
    )


def _samplers_of(atom: Any) -> tuple[Value, ...]:
    loader = atom.base if isinstance(atom, Instance) else atom
    return (loader.sampler, loader.batch_sampler) if isinstance(loader, Loader) else ()


def _epoch_is_set(program: Program, sampler: Any) -> bool:
    """Whether ``set_epoch`` is called on the sampler, or on something that may be it."""
    for fact in program.facts(facts.SetEpoch):
        target = fact.target
        samplers = distributed_samplers(target)
        if any(found is sampler for found in samplers):
            return True
        if not samplers and _may_hold(target, sampler):
            return True
    return False


def _may_hold(target: Value, sampler: Any) -> bool:
    parts = [part for atom in bare(target) for part in reaching((atom,))]
    known = [part for part in parts if isinstance(part, (Sampler, Loader, BatchSampler))]
    return not known or any(found is sampler for part in known for found in distributed_samplers((part,)))


def _fix(program: Program, sampler: Sampler, outer: Loop) -> Fix | None:
    """Set the epoch first thing in the loop, by a name which the sampler or its loader has there."""
    for fact in program.facts(facts.EpochLoop):
        if fact.site != outer.site:
            continue
        target = _name_of(fact, sampler, _bound(program, fact))
        if target is None:
            continue
        statement = f"{target}.set_epoch({outer.target})"
        if sampler.conditional:  # without it, the same name may be None, or a sampler that has no epoch
            statement = f'if hasattr({target}, "set_epoch"):\n    {statement}'
        edit = Edit("insert_before", fact.site.path, fact.body, statement)
        return Fix(f"insert `{target}.set_epoch({outer.target})` at the start of the epoch loop", True, (edit,))
    return None


def _bound(program: Program, fact: facts.EpochLoop) -> Callable[[str], bool]:
    """Tells of a name in the loop whether it has a value there in every run, with a single process too."""
    from validate_ddp.interpreter.surroundings import bound_names, is_field_set

    body = program.body(fact.site.path)
    plain = bound_names(body, fact.body)
    return lambda name: name in plain or (name.startswith("self.") and is_field_set(body, fact.body, name))


def _name_of(fact: facts.EpochLoop, sampler: Sampler, is_bound: Callable[[str], bool]) -> str | None:
    """What the sampler is called in the loop: its own name rather than one of a loader."""
    held = {name: value for name, value in fact.held.items() if is_bound(name)}
    for name, value in held.items():
        if value == (sampler,):
            return name
    for name, value in held.items():
        if len(value) == 1 and isinstance(value[0], Loader) and distributed_samplers(value) == [sampler]:
            return f"{name}.sampler" if value[0].sampler else f"{name}.batch_sampler.sampler"
    return None


_ENOUGH = 4
"""Indices that must agree: fewer can by chance."""


def observe(run: Run) -> Seen:
    """Compares the indices of consecutive iterations over the same loader. An epoch that some ranks set and others do
    not is DDP209's."""
    seen = [(each, each.sampler.shuffle and len(each.before) >= _ENOUGH) for each in reshuffles(run)]
    changed = {_which(each) for each, enough in seen if enough and each.before != each.after}
    for each, enough in seen:
        site = each.sampler.site
        if each.before != each.after:
            yield Well(site if each.before and each.after else None, held=enough)
        elif enough and _which(each) not in changed:
            shown = ", ".join(map(str, each.before[:5]))
            message = (
                f"epochs {each.epoch} and {each.epoch + 1} take the same samples in the same order "
                f"({shown}, ...): `set_epoch` is not called between them"
            )
            notes = (Note(each.site, "the iteration that repeats the one before"),)
            yield Observation(ERROR, site, message, notes, (each.rank,))
        elif each.before:
            yield Unclear(site)
            if enough:
                yield Unclear()


def _which(each: Reshuffle) -> tuple[object, ...]:
    """What is the same on all ranks."""
    return each.sampler.site.place, each.sampler.sampler, each.epoch
