"""The gradient on several ranks is not that of the same work in one process.

## What it does
Repeats the first step: on all ranks, and in one process on the batches of each of them, from the same weights, without
dropout, and in float64 where the model allows it. The gradient of the ranks has to be a combination of those of one
process, and the coefficients tell what is wrong: a sum that was never divided, parameters that are not reduced, ranks
that divide by a count of their own. It is the same for DistributedDataParallel, hand-written reductions, FSDP, tensor
parallelism and their combinations. A loss that is a sum over the samples may have its gradients added up: one process
on more of the data tells. Before anything is an error, all ranks are given one rank's batches: where they do not do the
same then, as with a weight, a share of the nodes or an objective of each rank, no process is the reference: only what
is not reduced at all is told, as a warning. Where they could not be tried, errors become warnings. An optimizer of the
script's own may reduce or divide gradients in its step: they are taken where it hands them to a step of torch's, and
where it does not, nothing is told of what it makes right in the parameters. Of such a step, given a right gradient, a
warning tells that it moves parameters to another side than in one process, as Muon does that makes orthogonal what a
rank holds of a matrix. How far it moves them is left to it, and what it draws. Done where the first step comes soon, or
with `--partition`.

Where no process is a reference, as ranks hold parts of the model, experts, or parts of a sequence, the ranks take the
first step again from weights that lie a little further on. What the mean of their losses changes by is what their
gradients have to say; where those of some parameters say something else, though in one process they do not, a warning
names one of them: what ranks send each other comes back wrong in the backward. Where all say the same, the table says
so. Of ranks that hold shards, one process
tells what is no shard: a warning names parameters that each rank holds whole and steps on a gradient of its own, while
others' gradients are added up, as norms under sequence parallelism. Experts that lie on the ranks one process has all:
what the ranks hold in common is compared then, with all ranks on the batches of one where no loader's can be joined.

Where each rank's optimizer holds a part of the parameters, a warning tells gradients of the others that are reduced
with what earlier steps have left in them: each rank has to clear those of all parameters, not of its own part alone.

## Why is this bad?
Data-parallel training is to be the training of one process on a larger batch. Where it is not, the learning rate or the
loss means something else on each number of GPUs, and parts of the model may train on a part of the data, or not at all.

## Example
```python
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
```

## Use instead
```python
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()
```

## References
- [Distributed Muon](https://arxiv.org/abs/2502.16982)
- [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.record.partition import UPDATE, judgements
from validate_ddp.record.run import NOWHERE, Run, Site
from validate_ddp.record.verdict import Observation, Seen, Telling, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (ERROR, WARNING)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True)


def observe(run: Run) -> Seen:
    """An error where the gradient is wrong by a factor, or not reduced."""
    yield from _piled(run)
    event = run.partition
    if event is None:
        return
    sloped = event.on_slope == 1 and not event.stays
    if not ((event.compared and event.repeats) or event.off_slope or event.parts or sloped):
        return
    site = Site((event.place,)) if event.place else NOWHERE
    found = judgements(event)
    for each in found:
        stepped = _stepped(run, event.mover) if each.kind == UPDATE else None
        yield Observation(each.severity, stepped or site, each.message, (), tuple(run.ranks))
    if not found:
        yield Well()


def _piled(run: Run) -> Iterator[Observation]:
    """Gradients that the optimizer of another rank steps on, with what was left of earlier steps on this one."""
    told = list(run.each(protocol.Piled))
    models = {(rank, event.model): event for rank, event in run.each(protocol.Model)}
    for rank, event in told:
        mine = models.get((rank, event.model))
        for other, theirs in told:
            places = set(event.places) & set(theirs.held)
            like = models.get((other, theirs.model))
            if other == rank or not places or mine is None or like is None or mine.made_of != like.made_of:
                continue
            names = ", ".join(f"`{mine.names[at]}`" for at in sorted(places)[:3])
            message = (
                f"rank {rank} sends gradients with what is left of earlier steps in them: {len(places)} parameters "
                f"({names}) that its own optimizer does not hold are never cleared there, and rank {other} steps on "
                "the sum"
            )
            yield Observation(WARNING, event.site, message, (), tuple(run.ranks))
            return


def _stepped(run: Run, kind: str) -> Site | None:
    """Where the first optimizer of a class has stepped first."""
    made = {event.optimizer for event in run.of(run.ranks[0], protocol.Optimizer) if event.kind == kind}
    return next((event.site for event in run.of(run.ranks[0], protocol.Step) if event.optimizer in made), None)
