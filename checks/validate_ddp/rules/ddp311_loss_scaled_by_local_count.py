"""Targets of one step weigh differently, as each loss is divided by a count of its own micro-batch or rank.

## What it does
Looks for a loss that is divided by a number which hangs on the rank's own batch, as `mask.sum()` or what a loop counts
under a condition on the batch, or is the mean of what a mask lets through, or of the targets that a cross entropy does
not leave out (`ignore_index`), where gradients of ranks are averaged and no collective sees that number. Where such
targets are of a class, as pixels without a label, this is advice. In a run, it reads at each backward how much every
target of a loss (a row, or a token that is not ignored) weighs in the gradient, and compares it between the ranks, and
between the micro-batches that are accumulated for a step. Told where whole micro-batches, or the shares of ranks or of
groups of ranks, weigh the same however many targets they have (of ranks that reduce by hand, where what they reduce is
seen to be what the backward has left); and where a loss that is divided by all targets of the step is divided by the
number of micro-batches too, by the script or by the schedule of a pipeline, which does so unless it is made with
`scale_grads=False`.

## Why is this bad?
Gradients of ranks are averaged, and those of micro-batches added up, with equal weights. A mean of few tokens pulls as
hard as one of many, so its tokens count more; the model learns from another mixture than it was given, and differently
on each number of GPUs.

## Example
```python
loss = F.cross_entropy(logits, labels, ignore_index=-100)  # 31 tokens here, 400 on another rank
loss.backward()
```

## Use instead
```python
count = (labels != -100).sum()  # of all micro-batches of the step
dist.all_reduce(count)
loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") * world_size / count
loss.backward()
```

## References
- [Fixing gradient accumulation](https://huggingface.co/blog/gradient_accumulation)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, WARNING, Proposal
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.marks import Apportioned
from validate_ddp.interpreter.objects import Batch
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Loader
from validate_ddp.interpreter.values import Opaque, Value, bare, constant, reaching
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Unclear, Well
from validate_ddp.record.weights import (
    ALIKE,
    GROUP,
    MOMENT,
    OWN,
    RANK,
    UNCLEAR,
    Weights,
    divided,
    of_steps,
    parted,
    spread,
    twice_divided,
    whole,
)
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose
from validate_ddp.rules.together import averages_by_hand

TRIGGER = facts.Backward
SEVERITIES = (WARNING, INFO)
EVIDENCE = "SR"
FIX = "-"

HEAD = """
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    data = TensorDataset(torch.randn(64, 9, 4), torch.randn(64, 9, 4), torch.rand(64, 9) < 0.5)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
VALID = (
    """
    for x, y, mask in loader:
        each = (model(x) - y).pow(2).mean(-1) * mask
        loss = (each.sum(axis=1) / mask.sum(axis=1).clamp(min=1)).mean()
        loss.backward()
        optimizer.step()
    """,
    """
    for x, y, mask in loader:
        count = mask.sum()
        dist.all_reduce(count)
        loss = ((model(x) - y).pow(2).mean(-1) * mask).sum() * world_size / count
        loss.backward()
        optimizer.step()
    """,
    """
    for x, y, mask in loader:
        each = (model(x) - y).pow(2).mean(-1) * mask
        loss = (each.sum(1) / mask.sum(1).clamp(min=1)).mean()
        loss.backward()
        optimizer.step()
    """,
    """
    for x, y, _ in loader:
        keep = torch.ones(len(x), 9)
        keep[:, 3:] = 0
        loss = ((model(x) - y).pow(2).mean(-1) * keep).sum() / keep.sum()
        loss.backward()
        optimizer.step()
    """,
    """
    for x, y, mask in loader:
        loss = F.mse_loss(model(x), y)
        with torch.no_grad():
            share = ((model(x) - y).abs().mean(-1) * mask).sum() / mask.sum()
        loss.backward()
        optimizer.step()
    """,
    """
    for x, y, mask in loader:
        count = mask.sum()
        total = count.clone()
        dist.all_reduce(total)
        loss = ((model(x) - y).pow(2).mean(-1) * mask).sum() / count
        (loss * (count / total) * world_size).backward()
        optimizer.step()
    """,
    """
    for x, y, _ in loader:
        given, out, loss = y != 0, model(x), 0
        for i in range(len(x)):
            loss = loss + F.l1_loss(out[i][given[i]], y[i][given[i]])
        for row, target in zip(out, y):
            loss = loss + (row - target)[target != 0].pow(2).mean()
        (loss / len(x)).backward()
        optimizer.step()
    """,
    """
    for x, y, mask in DataLoader(data, sampler=DistributedSampler(data)):
        loss = ((model(x) - y).pow(2).mean(-1) * mask).sum() / mask.sum()
        loss.backward()
        optimizer.step()
    """,
    """
    for x, y, _ in loader:
        keep = torch.rand(x.shape[:2]).argsort(1).argsort(1) < 3
        loss = ((model(x) - y).pow(2).mean(-1) * keep).sum() / keep.sum()
        loss.backward()
        optimizer.step()
    """,
    """
    for x, y, mask in loader:
        out = model(x)
        centre = (out * mask[..., None]).sum() / mask.sum()
        loss = (out - centre - y).abs().mean() + F.mse_loss(out - out[mask].mean(), y)
        loss.backward()
        optimizer.step()
    """,
    """
    for x, y, _ in loader:
        loss = F.cross_entropy(model(x), y.mean(-1).long(), ignore_index=-1)
        loss.backward()
        optimizer.step()
    """,
)
INVALID = (
    """
    for x, y, mask in loader:
        loss = ((model(x) - y).pow(2).mean(-1) * mask).sum() / mask.sum()  # expect
        loss.backward()
        optimizer.step()
    """,
    """
    class MaskedLoss(nn.Module):
        def forward(self, prediction, target):
            given = target != 0
            count = given.float().sum().item()
            errors = (prediction - target)[given] ** 2
            return errors.sum() / (count + 1e-6)  # expect

    criterion = MaskedLoss()
    for x, y, _ in loader:
        loss = 0.5 * criterion(model(x), y)
        loss.backward()
        optimizer.step()
    """,
    """
    for x, y, _ in loader:
        given = y.ne(-100)
        loss = F.mse_loss(model(x)[given], y[given])  # expect
        loss.backward()
        optimizer.step()
    """,
    """
    for x, y, mask in loader:
        labels = y.mean(-1).long()
        labels[~mask] = -100
        loss = F.cross_entropy(model(x).view(-1, 4), labels.view(-1))  # expect
        loss.backward()
        optimizer.step()
    """,
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained("gpt2")
    criterion = nn.CrossEntropyLoss(ignore_index=tokenizer.pad_token_id)
    for x, y, _ in loader:
        loss = criterion(model(x), y.mean(-1).long())  # expect
        loss.backward()
        optimizer.step()
    """,
    """
    criterion = nn.CrossEntropyLoss(ignore_index=255)
    for x, y, _ in loader:
        loss = criterion(model(x), y.mean(-1).long())  # expect
        loss.backward()
        optimizer.step()
    """,
)
_COUNTED, _SHARES = "share", ("share", "ignored")
_HOW = {_COUNTED: "divided by how many elements count", "ignored": "the mean of the targets that count"}
_LEAVING_OUT = ("ignore_index", "ignore_label")
_UNEQUAL = 1.1
"""How many times more one target weighs than another is worth a word."""
_OFTEN = 0.25
"""Share of the steps from which it is more than the last batch of an epoch."""
_DIVIDES = {
    OWN: "each loss is divided by the number of its own targets",
    MOMENT: "each micro-batch is divided by the number of its targets on all ranks, not by that of the whole step",
    RANK: "each rank divides by the number of its own targets",
    GROUP: "each group of ranks divides by the number of its own targets",
}
_TWICE = "twice"


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each division that ends in a loss, where a wrapper averages the gradients."""
    wraps = [fact for fact in program.facts(facts.Wrap, facts.Shard, facts.Preparing) if fact.name != "dp"]
    averaged = wraps or averages_by_hand(program)
    if not program.is_distributed or not averaged:
        return
    made = (fact for fact in reversed(program.facts(facts.Division)) if fact.name in _SHARES)
    divisions = {fact.site: fact for fact in made if not _of_one_sample(fact)}
    told = set()
    for backward in program.facts(facts.Backward):
        for mark in reaching(backward.loss):
            fact = divisions.get(mark.site) if isinstance(mark, Apportioned) else None
            if fact is None or fact.site in told or not program.runs_on_many(backward):
                continue
            told.add(fact.site)
            severity = WARNING if fact.name == _COUNTED else _of_ignored(program, fact)
            if not severity:
                continue
            yield propose(
                program,
                fact,
                severity,
                f"the loss is {_HOW[fact.name]} in the batch of this rank, and gradients of ranks are averaged: one "
                "element weighs more on a rank that has fewer of them",
                evidence=[
                    place(backward.site, "the gradients of this loss"),
                    place(averaged[0].site, "are averaged over the ranks here"),
                ],
            )._replace(expects=("statement", ""))


def _of_one_sample(fact: facts.Division) -> bool:
    """Whether the batches have one sample each: then it is the mean of that, and samples weigh alike."""
    loaders = [atom for part in reaching(fact.value) if isinstance(part, Batch) for atom in bare(part.loader)]
    plain = [each for each in loaders if isinstance(each, Loader) and not (each.batch_sampler or each.open)]
    return bool(plain) and len(plain) == len(loaders) and all(_size(each) == 1 for each in plain)


def _size(loader: Loader) -> object:
    return constant(loader.batch_size) if loader.batch_size else 1


def _of_ignored(program: Program, fact: facts.Division) -> str:
    """How sure it is that batches have targets which a cross entropy leaves out; nothing where only a default says so.

    Who leaves a class out that targets can be, as 0 or 255, has such targets; how many may hardly differ.
    """
    said = constant(fact.by) if fact.by else -100
    if isinstance(said, int) and said >= 0:
        return INFO
    if said == -100 or any(word in name for name in _names(fact.by) for word in _LEAVING_OUT):
        return WARNING if program.mentions(mentions.LEFT_OUT) else ""
    return WARNING if any("pad" in name for name in _names(fact.by)) else ""


def _names(value: Value) -> list[str]:
    return [atom.name.lower() for atom in bare(value) if isinstance(atom, Opaque)]


def observe(run: Run) -> Seen:
    """Where ranks average by hand, they may weigh by their counts after the backward: only micro-batches are compared
    there, unless what they reduce is seen to be what the backward has left."""
    if run.world_size < 2 or len(run.ranks) < run.world_size:
        return
    pipelined = list(twice_divided(run))
    for rank, site, times in pipelined:
        if times:
            message = _wholly(times, "the loss is divided by the micro-batches, and so are gradients by the pipeline")
            yield Observation(WARNING, site, message, (), (rank,))
            return
    joined = run.wraps or any(run.each(protocol.Sharded))
    compared, found, groups = 0, list[tuple[str, Weights]](), parted(run)
    for each in of_steps(run):
        kind = _kind(each, joined, groups if len(each.rows) == len(run.replicas) else [])
        compared += kind != UNCLEAR
        if kind not in (ALIKE, UNCLEAR):
            found.append((kind, each))
    if not found:
        yield Well() if compared or pipelined else Unclear()
        return
    kind, worst = max(found, key=lambda pair: spread(pair[1].rows))
    often = len(found) > _OFTEN * compared
    message = f"{_told(kind, worst)}; so it is in {len(found)} of {compared} steps"
    yield Observation(WARNING if often else INFO, worst.site, message, (), tuple(run.ranks))


def _kind(each: Weights, joined: bool, groups: list[list[list[int]]]) -> str:
    """By what a loss of a step is divided that is to be divided by something else."""
    comparable = joined or each.as_left
    kind = divided(each.rows, groups if comparable else ())
    if kind in (OWN, RANK) and not comparable:
        kind = divided(each.rows[:1])
    if kind == ALIKE:
        backwards = len(each.rows[0])
        by_all = backwards > 1 and joined and each.alone and _unequal(each)
        return _TWICE if by_all and abs(whole(each.rows) * backwards - 1) < 1e-3 else ALIKE
    if kind != UNCLEAR and (spread(each.rows) <= _UNEQUAL or (each.ends and each.several)):
        return ALIKE
    return kind


def _unequal(each: Weights) -> bool:
    """Whether micro-batches have different numbers of targets: then only a count of all makes these weigh alike."""
    counts = [cell.targets for row in each.rows for cell in row]
    return max(counts) > _UNEQUAL * min(counts)


def _wholly(times: int, why: str) -> str:
    return f"the gradient is 1/{times} of that of the mean over the targets of the step: {why}"


def _told(kind: str, worst: Weights) -> str:
    rows = worst.rows
    if kind == _TWICE:
        times = len(rows[0])
        return _wholly(
            times, f"each of the {times} micro-batches is divided by their number, and by the count of all targets too"
        )
    if worst.several:
        counts = [", ".join(str(cell.targets) for cell in row) for row in rows]
        told = f"{counts[0]} in the micro-batches of the first rank"
    else:
        told = ", ".join(f"{row[0].targets} on rank {rank}" for rank, row in enumerate(rows))
    return f"{_DIVIDES[kind]} ({told}), so that one target counts {spread(rows):.3g} times as much as another"
