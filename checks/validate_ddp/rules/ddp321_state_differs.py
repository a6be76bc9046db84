"""What ranks compute with, and no optimizer moves, differs between them: buffers, a teacher, weights moved by hand.

## What it does
Compares what the ranks of a rehearsal hold when all of them call a module at the same moment, but for what an optimizer
moves: that is compared by DDP303. It tells

- weights under a wrapper that are moved by hand, and differently on each rank,
- buffers and frozen weights that are equal when training begins, differ later, and that the result depends on,
- a copy of the model that is not trained, as a teacher or what draws samples, where the model itself is equal on all
  ranks or sharded over them,
- a moving average of sharded tensors that some of the ranks which hold them never update,
- buffers that the result depends on and each rank moves by its own batch, before the wrapper makes them rank zero's,
- buffers of floating point, and weights, that differ where all ranks evaluate with them.

Running statistics that training only writes are no finding before an evaluation; nor is what differs from the first
step on, what has a row for each sample, and what is part of a module whose calls send something to other ranks.

## Why is this bad?
Each rank then learns by, or judges its share of the data with, something else: the loss or the metric is of no one
model, and what rank zero saves has its own state alone, made of 1/W of the data. `DistributedDataParallel` makes
buffers equal at the beginning of a forward, to those of rank zero, which have learned of its data alone: not where it
is told `broadcast_buffers=False`, where the module is called past it, as through `.module`, and not for modules that it
does not wrap.

## Example
```python
teacher = copy.deepcopy(net)            # each rank has first weights of its own
model = DistributedDataParallel(net)    # makes them equal
```

## Use instead
```python
model = DistributedDataParallel(net)
teacher = copy.deepcopy(net)
```
Reduce what an update is made of before it: `dist.all_reduce(counts)`; average running statistics before an evaluation:
`for buffer in net.buffers(): dist.all_reduce(buffer, op=dist.ReduceOp.AVG)`, or train with `SyncBatchNorm`.

## References
- [DistributedDataParallel: broadcast_buffers](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
- [broadcast_buffers=False skips the initial synchronisation, too](https://github.com/pytorch/pytorch/issues/111138)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validate_ddp.findings import ERROR, INFO, WARNING
from validate_ddp.record.census import Common, Look, calls, changed_at, models
from validate_ddp.record.evaluations import evaluations
from validate_ddp.record.one_model import sharers
from validate_ddp.record.run import Run, Site, once
from validate_ddp.record.updates import kept_equal
from validate_ddp.record.verdict import Note, Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(step_by_step=True)


def observe(run: Run) -> Seen:
    """Held where something was seen to be equal on all ranks when they computed with it."""
    evaluated = _in_evaluations(run)
    yield from _averages(run)
    for common in models(run, True):
        yield from _overwritten(run, common)
    for common in models(run):
        apart = [*_moved(run, common), *_parted(run, common), *_copies(run, common)]
        yield from apart
        for look in common.looks:
            if not common.training and id(look.state) in evaluated:
                yield from _evaluates(run, common, look)
        if not apart and common.training and common.grad:
            yield Well() if any(look.equal() for look in common.looks) else Unclear()


def _since(common: Common, places: set[int]) -> tuple[Look, str]:
    """The first moment at which ranks differ in some of these, and since when that is, in words."""
    look = next(look for look in common.looks if look.apart() & places)
    steps, backwards = look.state.steps, look.state.backwards
    return look, f"after step {steps}" if steps else f"after backward {backwards}"


def _moved(run: Run, common: Common) -> Iterator[Observation]:
    """Weights under DDP that no optimizer moves, in a run whose gradients are reduced each time."""
    first, last = common.looks[0], common.looks[-1]
    places = first.equal() & last.apart() & set(common.model.wrapped)
    forwards = [event for event in run.of(sharers(run)[0], protocol.Forward) if event.grad]
    if not places or not all(event.sync for event in forwards):
        return  # they may be averaged now and then
    look, since = _since(common, places)
    message = (
        f"{len(places)} parameters under DDP ({common.names(places)}) are equal at first and differ between ranks "
        f"{since}, although their gradients are reduced: what moves them is another on each rank"
    )
    yield _told(WARNING if run.truncated else ERROR, run, look, changed_at(run, common, places), message)


def _parted(run: Run, common: Common) -> Iterator[Observation]:
    """What is no weight that is trained, and that the result of training calls depends on."""
    model = common.model
    shown = list(calls(run, common)) if common.training and common.grad else []
    read = {at for event in shown for at in event.reads}
    rows = {row for event in shown for row in event.rows}
    places = {
        at
        for at in common.looks[0].equal() & common.looks[-1].apart() & read - set(model.trained)
        if len(model.shapes[at]) < 2 or rows.isdisjoint(model.shapes[at])  # what has a row a sample is of the samples
    }
    if not places or any(event.talks for event in shown):
        return  # it may be of a part of the model
    look, since = _since(common, places)
    message = (
        f"{common.names(places)} of `{model.kind}`, on which what it computes depends, is equal on all ranks at first "
        f"and differs {since}: each rank moves it by its own share of the data, and learns by another one"
    )
    yield _told(WARNING, run, look, changed_at(run, common, places), message)


def _overwritten(run: Run, common: Common) -> Iterator[Observation]:
    """What each rank has made of its own data, and the wrapper takes from all but one."""
    looks, reads = common.looks, {at for event in calls(run, common) for at in event.reads}
    places = {
        at for at in looks[0].equal() & looks[-1].apart() & reads if sum(at in look.apart() for look in looks) > 1
    }
    if places:
        message = (
            f"{common.names(places)} of `{common.model.kind}`, on which what it computes depends, is moved by each "
            "rank by its own share of the data, and DistributedDataParallel puts rank zero's in its place at the next "
            "forward: what the others have learned is thrown away"
        )
        look, _ = _since(common, places)
        note = Note(look.state.site, "what the ranks hold differs before this call")
        site, ranks = changed_at(run, common, places) or look.state.site, sharers(run)
        yield Observation(WARNING, site, message, (note,), tuple(ranks), since=((ranks[0], look.state.time),))


def _averages(run: Run) -> Iterator[Observation]:
    """Moving averages of shards: a rank that went on to further steps and has updated none of them leaves its part as
    it was."""
    told: dict[tuple[int, ...], set[int]] = {}
    for rank, event in run.each(protocol.AveragedShards):
        told.setdefault(tuple(event.ranks), set()).add(rank)
    for members, moving in told.items():
        first = min(moving)
        steps, event = _first_average(run, first, members)
        still = [rank for rank in members if rank not in moving and rank in run.ranks]
        still = [rank for rank in still if len(run.of(rank, protocol.Step)) > steps]
        if still:
            message = (
                f"this moving average is of tensors that are sharded over ranks {_listed(members)}, and rank "
                f"{_listed(still)} never updates it: that part of it stays what it was when it was made"
            )
            yield Observation(WARNING, event.site, message, (), members, since=((first, event.time),))


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")


def _first_average(run: Run, rank: int, members: tuple[int, ...]) -> tuple[int, protocol.AveragedShards]:
    """The first update of one on a rank, and after how many steps that is."""
    steps = 0
    for event in run.of(rank, protocol.Step, protocol.AveragedShards):
        if isinstance(event, protocol.AveragedShards):
            if tuple(event.ranks) == members:
                return steps, event
        else:
            steps += 1
    raise AssertionError(members)


def _copies(run: Run, common: Common) -> Iterator[Observation]:
    """A copy of the model that training moves, which is not moved itself by an optimizer or a wrapper's reduction."""
    sharded = _is_copy_of_shards(run, common)
    places = _weights(common.model) & common.looks[-1].apart()
    if not places or not (sharded or any(_is_copy(common, other) for other in models(run))):
        return
    began = common.looks[0].apart() & places
    look, since = _since(common, places)
    wraps = run.of(sharers(run)[0], protocol.Ddp)
    what = f"{len(places)} weights of a copy of the model that is not trained ({common.names(places)}) differ between"
    if began and wraps:
        message = f"{what} ranks from the first: it was made before the wrapper makes the model equal here"
        yield _told(WARNING, run, look, wraps[0].site, message)
    else:
        itself = "one for all of them" if sharded else "equal on all of them"
        message = f"{what} ranks {'from the first' if began else since}, while the model is {itself}"
        yield _told(WARNING, run, look, None if began else changed_at(run, common, places), message)


def _weights(model: protocol.Model) -> set[int]:
    return set(range(len(model.names))) - set(model.buffers)


def _is_copy_of_shards(run: Run, common: Common) -> bool:
    """Whether a model that is not trained is made like one that is sharded over all ranks that share the data."""
    ranks = sharers(run)
    if common.grad or not any({*event.ranks} == {*ranks} for event in run.of(ranks[0], protocol.Sharded)):
        return False
    told = {state.model for state in run.of(ranks[0], protocol.State)}
    return any(
        model.trained and model.model not in told and _is_made_like(common.model, model)
        for model in run.of(ranks[0], protocol.Model)
    )


def _is_copy(common: Common, other: Common) -> bool:
    """Whether a model that is not trained is made like another one that is, and is equal on all ranks."""
    mine, theirs = common.model, other.model
    if (common.grad and mine.trained) or mine.wrapped or mine is theirs or not (other.training and other.grad):
        return False
    moved, first = set(theirs.trained), other.looks[0]
    if not moved or not moved <= first.equal() or any(look.apart() & moved for look in other.looks):
        return False
    return _is_made_like(mine, theirs)


def _is_made_like(mine: protocol.Model, theirs: protocol.Model) -> bool:
    one, two = (
        [(model.names[at], list(model.shapes[at])) for at in sorted(_weights(model))] for model in (mine, theirs)
    )
    return len(one) == len(two) > 1 and all(
        shape == like and (name.endswith(named) or named.endswith(name))
        for (name, shape), (named, like) in zip(one, two, strict=True)
    )


def _evaluates(run: Run, common: Common, look: Look) -> Seen:
    """Only in evaluations: what a model holds that is switched to them and never used does no harm."""
    buffers, ranks = set(common.model.buffers), tuple(sharers(run))
    weights = look.apart() & set(common.model.trained)
    if weights and any(kept_equal(run, event.optimizer) for event in run.of(ranks[0], protocol.Optimizer)):
        message = (
            f"{len(weights)} weights ({common.names(weights)}) differ between the ranks in the evaluation that calls "
            "this, and are equal after each step: what is put in their place is another on each rank"
        )
        yield Observation(WARNING, look.state.site, message, (), ranks)
        return
    apart = look.apart() & buffers
    if not apart:
        yield Well() if buffers else Unclear()
        return
    message = (
        f"{len(apart)} of {len(buffers)} buffers ({common.names(apart)}) differ between the ranks in the evaluation "
        "that calls this: each judges its share of the data by statistics of its own"
    )
    # A wrapper that broadcasts them leaves them apart by the last batch alone.
    broadcast = any(event.waits and event.training for event in run.of(ranks[0], protocol.Forward))
    yield Observation(INFO if broadcast else WARNING, look.state.site, message, (), ranks)


def _told(severity: str, run: Run, look: Look, site: Site | None, message: str) -> Observation:
    """site: of the cause; None where only the call is known that shows it."""
    ranks, shown = sharers(run), look.state.site
    notes = () if site is None else (Note(shown, "what the ranks hold differs in this call"),)
    return Observation(severity, site or shown, message, notes, tuple(ranks), since=((ranks[0], look.state.time),))


@once
def _in_evaluations(run: Run) -> set[int]:
    """The states of the first rank, by id, that it computed with since it, and all others, evaluated on a loader."""
    looked = {(each.turn.loader, each.turn.number) for of_rank in evaluations(run) for each in of_rank[:1]}
    found: set[int] = set()
    evaluated = False
    for event in run.of(sharers(run)[0], protocol.Iteration, protocol.State, protocol.Step) if sharers(run) else ():
        match event:
            case protocol.Iteration() if (event.loader, event.turn) in looked:
                evaluated = True
            case protocol.Step():
                evaluated = False
            case protocol.State() if evaluated:
                found.add(id(event))
    return found
