"""A metric of one rank's share of the evaluation data stands for the whole.

## What it does
Looks for a loader with a DistributedSampler (or one that Accelerate has prepared) over which the model is evaluated
without gradients, where a number summed up over its batches is printed or logged by rank zero, steers the learning
rate, ends the training, or picks the checkpoint to keep, and no collective has put the ranks' numbers together. It is
advice where rank zero reports the loss of its own batches while it trains, and nothing in that loop is put together.
Lightning's `self.log` of a loss is read likewise, unless `sync_dist=True`, which `rank_zero_only=True` turns off again.

## Why is this bad?
Each rank has seen 1 / world_size of the data. Rank zero's accuracy is that of its share: it changes with the number of
GPUs, it is noisier than it looks, and the checkpoint that is kept is the best on that share only. Where every rank
acts on its own number, as `ReduceLROnPlateau` does, the ranks drift apart; and one that stops early by its own number
leaves the others waiting in their next backward.

## Example
```python
sampler = DistributedSampler(val_set, shuffle=False)
correct = evaluate(model, DataLoader(val_set, sampler=sampler))
if rank == 0:
    print(correct / len(val_set))
```

## Use instead
```python
correct = torch.tensor(evaluate(model, loader), device=device)
dist.all_reduce(correct)
if rank == 0:
    print(correct.item() / len(val_set))
```

## References
- [torch.distributed.all_reduce](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
- [Lightning: synchronize validation and test logging](https://lightning.ai/docs/pytorch/stable/accelerators/accelerator_prepare.html#synchronize-validation-and-test-logging)
- [Accelerate: gather_for_metrics](https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.gather_for_metrics)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from validate_ddp.findings import INFO, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.metrics import REDUCED, SUMMED
from validate_ddp.interpreter.objects import Batch, Container, Output
from validate_ddp.interpreter.ranks import PARTIAL
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Instance, Rank, Value, bare, is_whole, reaching
from validate_ddp.record.evaluations import Evaluation, evaluations
from validate_ddp.record.partition import replicas
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.evaluating import is_evaluation, is_inside, sharding, summed_over
from validate_ddp.rules.proposing import place, propose
from validate_ddp.rules.running_losses import PUTTING_TOGETHER, seen_from, told_of_one
from validate_ddp.rules.stopping import stopped_by

TRIGGER = facts.Iterate
SEVERITIES = (WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"

HEAD = """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    val_set = TensorDataset(torch.zeros(64, 4), torch.zeros(64))
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(val_set, batch_size=8, sampler=DistributedSampler(val_set, drop_last=True))

    class AverageMeter:
        def __init__(self, name):
            self.name = name
            self.unit = "%"
            self.reset()

        def reset(self):
            self.value = 0
            self.sum = 0
            self.count = 0
            self.avg = 0

        def update(self, value, n=1):
            self.value = value
            self.sum += value * n
            self.count += n
            self.avg = self.sum / self.count

    @torch.no_grad()
    def evaluate(model, loader):
        model.eval()
        correct = total = 0
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
            total += y.size(0)
        return correct / total

    @torch.no_grad()
    def measure(model, loader):
        top1 = AverageMeter("top1")
        for x, y in loader:
            top1.update((model(x).argmax(1) == y).float().mean().item(), y.size(0))
        return top1
"""
_ACCELERATE = """
    # alone
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = torch.nn.Linear(4, 2)
    model, loader = accelerator.prepare(model, DataLoader(TensorDataset(torch.zeros(64, 4)), batch_size=8))
    losses = 0
    with torch.no_grad():
        for (x,) in loader:
            losses += ONE
    accelerator.print("validation", losses / len(loader))  # expect
"""
VALID = (
    """
    share = torch.tensor(evaluate(model, loader))
    dist.all_reduce(share)
    accuracy = share.item() / dist.get_world_size()
    if rank == 0:
        print(f"accuracy {accuracy:.3f}")
    """,
    """
    def synchronized(meter):
        numbers = torch.tensor([meter.sum, meter.count])
        dist.all_reduce(numbers)
        meter.sum, meter.count = numbers.tolist()
        meter.avg = meter.sum / meter.count
        return meter

    top1 = synchronized(measure(model, loader))
    if rank == 0:
        print(top1.avg)
    """,
    """
    print(f"rank {rank}: {evaluate(model, loader):.3f} on its share")
    """,
    """
    for x, y in DataLoader(val_set, batch_size=8, sampler=DistributedSampler(val_set)):
        loss = F.cross_entropy(model(x), y.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"loss {mean.item():.3f}")
    """,
    """
    accuracy = evaluate(model, DataLoader(val_set, batch_size=8))
    if rank == 0:
        print(accuracy)
    """,
    """
    from metrics_of_ours import reduce_dict

    results = reduce_dict({"accuracy": evaluate(model, loader)})
    if rank == 0:
        print(results)
    """,
    """
    with torch.no_grad():
        for step, (x, y) in enumerate(loader):
            loss = model(x).mean()
            if step % 10 == 0 and rank == 0:
                print(step, loss.item())
    """,
    """
    def shared(tensors):
        for tensor in tensors:
            dist.all_reduce(tensor)
        return tensors

    for x, y in DataLoader(val_set, batch_size=8, sampler=DistributedSampler(val_set)):
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        loss, count = shared([loss.detach(), y.sum()])

    top1 = AverageMeter("top1")
    with torch.no_grad():
        for x, y in loader:
            hits, count = shared([(model(x).argmax(1) == y).float().mean(), y.sum()])
            top1.update(hits.item() / dist.get_world_size(), y.size(0))
    if rank == 0:
        print(top1.avg)
    """,
    _ACCELERATE.replace("ONE", "accelerator.gather(model(x).mean()).mean().item()").replace("  # expect", ""),
)
INVALID = (
    """
    accuracy = evaluate(model, loader)
    if rank == 0:
        print(f"accuracy {accuracy:.3f}")  # expect
    """,
    """
    best = 0.0
    for epoch in range(3):
        accuracy = measure(model, loader).avg
        if rank == 0 and accuracy > best:
            best = accuracy
            torch.save(model.module.state_dict(), "best.pt")  # expect
    """,
    """
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter() if rank == 0 else None
    losses = []
    with torch.no_grad():
        for x, y in loader:
            losses.append(model(x).mean().item())
    if writer is not None:
        writer.add_scalar("loss", sum(losses) / len(losses), 0)  # expect
    """,
    """
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for epoch in range(3):
        plateau.step(evaluate(model, loader))  # expect
    """,
    _ACCELERATE.replace("ONE", "model(x).mean().item()"),
    _ACCELERATE.replace("ONE", "model(x).mean().item(); rows = accelerator.gather(model(x))"),
    """
    for step, (x, y) in enumerate(DataLoader(val_set, batch_size=8, sampler=DistributedSampler(val_set))):
        loss = F.cross_entropy(model(x), y.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.3f}")  # expect
    """,
)

_ROUNDED = 1e-4
"""Relative difference between numbers that ranks have worked out from the same."""


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each loader, at what is done with its number first; the rest is evidence."""
    if not program.is_distributed:
        return
    yield from _while_training(program)
    iterates = program.facts(facts.Iterate)
    for iterate in iterates:
        loader = iterate.loader[0]
        if not is_evaluation(program, iterate, iterates) or not program.runs_on_many(iterate):
            continue
        sharded, sure = sharding(loader)
        if sharded is None:
            continue
        used = [row for row in _uses(program, iterate) if not _put_together_between(program, iterate, row[0])]
        if not used:
            continue
        fact, message = min(
            used, key=lambda row: (not isinstance(row[0], facts.Save), row[0].who not in PARTIAL, row[0].order)
        )
        others = [place(other.site, what) for other, what in used if other is not fact]
        weak = not sure or (isinstance(fact, facts.Report) and fact.name != "step" and fact.who not in PARTIAL)
        told = propose(
            program,
            fact,
            INFO if weak else WARNING,
            f"{message} is that of one rank's share of the data: no collective puts the ranks' numbers together",
            evidence=[
                place(iterate.site, "each rank goes over its share here"),
                sharded,
                *others[:3],
            ],
        )
        yield told._replace(expects=("if", "")) if isinstance(fact, facts.Decision) else told


def _while_training(program: Program) -> Iterator[Proposal]:
    """One advice for each loop that trains, at the first report."""
    for iterate, reports in told_of_one(program):
        seen = [seen_from(fact, iterate) for fact in reports]
        first, *others = {fact.site: fact for fact in seen}.values()
        yield propose(
            program,
            first,
            INFO,
            "the training loss reported here is that of this rank's batches alone: no collective puts the losses "
            "together, and it is noisier than what is minimised",
            evidence=[
                place(iterate.site, "each rank trains on its own batches here"),
                *(place(other.site, "and is reported here") for other in others[:3]),
            ],
        )


def _uses(program: Program, iterate: facts.Iterate) -> list[tuple[Fact, str]]:
    """What is done with numbers of the loader: the facts, and the number in words."""
    found: list[tuple[Fact, str]] = []
    saves = [fact for fact in program.facts(facts.Save) if fact.role != "unresolved"]
    for fact in program.facts(facts.Report, facts.Decision):
        if not _is_local(fact.value, iterate) or is_inside(fact, iterate):
            continue
        if isinstance(fact, facts.Decision):
            chosen = [
                save
                for save in saves
                if any(g.site.path == fact.site.path and g.site.statement == fact.site.statement for g in save.guards)
            ]
            found += [(save, "the metric that picks what is saved here") for save in chosen]
            stop = stopped_by(program, fact, since=iterate.order)
            if stop is not None:
                found.append((stop, "the metric that ends the training of a rank here, while others go on,"))
        elif fact.name == "step":
            found.append((fact, "the metric that steers the learning rate"))
        else:
            found.append((fact, "the metric reported here"))
    return found


def _is_local(value: Value, iterate: facts.Iterate) -> bool:
    """Whether the number was summed up over batches of this loader alone, and no collective may have seen it."""
    found = summed_over(value, iterate)
    parts = [part for row in found for part in row]
    if not found or REDUCED in parts or any(isinstance(part, Rank) for part in parts):
        return False
    return all(map(is_whole, found))  # else a rank or a collective may be among what is left out


def _put_together_between(program: Program, iterate: facts.Iterate, fact: Fact) -> bool:
    """Whether a collective that may put numbers together runs between the evaluation and the use of its number."""
    return any(
        iterate.order < other.order < fact.order
        and any(word in other.name for word in PUTTING_TOGETHER)
        and not _is_of_a_batch(other, iterate)
        for other in program.facts(facts.Collective)
    )


def _is_of_a_batch(collective: facts.Collective, iterate: facts.Iterate) -> bool:
    """Whether it is given a tensor of one batch, and nothing that was summed up: predictions, to be kept elsewhere."""
    parts = reaching(collective.arguments)
    held = [*bare(collective.arguments), *parts]
    if SUMMED in parts or not is_whole(parts) or any(isinstance(part, (Instance, Container)) for part in held):
        return False
    return is_inside(collective, iterate) or any(isinstance(part, (Batch, Output)) for part in held)


def observe(run: Run) -> Seen:
    """Whether a rank's own number is taken for the whole is not to be seen from outside: of itself it is an info."""
    yield from _steered(run)
    for of_ranks in evaluations(run):
        if not _shared(of_ranks):
            continue
        if any(each.combined for each in of_ranks):
            yield Well()
            continue
        first = of_ranks[0]
        message = (
            f"each rank evaluates its own share, rank {first.rank} {first.size} samples of {first.length}, "
            "and nothing is combined before training goes on: what a rank reports is of its share alone"
        )
        ranks = tuple(each.rank for each in of_ranks)
        yield Observation(INFO, first.turn.site, message, (), ranks, partial=True)


def _steered(run: Run) -> Seen:
    """Schedules of one model that go by a metric: each rank has to give the same one."""
    if run.world_size < 2 or len(run.ranks) < run.world_size or not replicas(run):
        return
    told = [[event for event in run.of(rank, protocol.Scheduled) if event.metric is not None] for rank in run.replicas]
    for together in zip(*told, strict=False):
        metrics = [event.metric or 0.0 for event in together]
        if together[0].site is None or len({event.schedule for event in together}) > 1:
            continue
        if max(metrics) - min(metrics) <= _ROUNDED * max(map(abs, metrics)) or not all(map(math.isfinite, metrics)):
            yield Well()
            continue
        shown = ", ".join(f"{value:.4g}" for value in metrics)
        message = f"the metric that steers the learning rate is each rank's own ({shown}), and so are the rates then"
        yield Observation(WARNING, together[0].site, message, (), tuple(run.replicas))
        return


def _shared(of_ranks: list[Evaluation]) -> bool:
    """Whether the ranks were given different samples."""
    samples = [set(each.samples) for each in of_ranks]
    return all(samples) and of_ranks[0].length is not None and len(set(map(frozenset, samples))) > 1
