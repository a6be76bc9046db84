"""A number of one rank's batch is divided by the number of ranks, and no ranks' numbers are summed up.

## What it does
Looks for a loss or another number computed from a batch which is divided by the world size, in a program without a
collective that could sum the ranks' numbers up.

## Why is this bad?
The mean over ranks is the sum of all ranks' numbers divided by their number. Without the sum it is one rank's number,
made smaller: eight GPUs report an eighth of the loss. DistributedDataParallel divides the gradients by the number of
ranks itself, so that a loss which is divided before goes into the step at an eighth of its weight.

## Example
```python
loss = criterion(model(x), y)
print(loss.item() / dist.get_world_size())
```

## Use instead
```python
mean = loss.detach()
dist.all_reduce(mean, op=dist.ReduceOp.SUM)
print(mean.item() / dist.get_world_size())
```

## References
- [torch.distributed.all_reduce](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, INFO, WARNING, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.accumulation import gradients_reduced_by_hand
from validate_ddp.interpreter.metrics import REDUCED
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import WorldSize, bare, reaching
from validate_ddp.rules.proposing import place, propose

TRIGGER = facts.Division
SEVERITIES = (ERROR, WARNING, INFO)
EVIDENCE = "S"
FIX = "-"

HEAD = """
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    data = TensorDataset(torch.zeros(64, 4))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
VALID = (
    """
    for (batch,) in loader:
        loss = model(batch).mean()
        mean = loss.detach()
        dist.all_reduce(mean)
        print(mean.item() / world_size)
    """,
    """
    for (batch,) in loader:
        loss = model(batch).mean()
        share = loss.detach() / world_size
        dist.all_reduce(share)
        print(share.item())
    """,
    """
    batch_size = 64 // world_size
    rate = 0.1 / world_size
    per_rank = len(data) / world_size
    """,
    """
    class Mean(torch.autograd.Function):
        pass

    from collectives_of_ours import reduce_mean

    for (batch,) in loader:
        loss = reduce_mean(model(batch).mean())
        print(loss.item() / world_size)
    """,
)
INVALID = (
    """
    for (batch,) in loader:
        loss = model(batch).mean()
        print(loss.item() / world_size)  # expect
    """,
    """
    for (batch,) in loader:
        loss = model(batch).mean() / world_size  # expect
        loss.backward()
        optimizer.step()
    """,
    """
    total = 0.0
    with torch.no_grad():
        for (batch,) in loader:
            total += model(batch).mean().item()
    total /= world_size  # expect
    """,
)

_SUMMING = ("reduce", "gather", "alltoall", "all_to_all", "broadcast", "bcast")


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each division, in a program in which nothing sums up."""
    if not program.complete or gradients_reduced_by_hand(program) or program.is_tool:
        return
    if any(word in fact.name.lower() for fact in program.facts(facts.Collective) for word in _SUMMING):
        return
    if program.facts(facts.Shard, facts.Partition) or any(fact.name != "ddp" for fact in program.facts(facts.Wrap)):
        return
    wraps = program.facts(facts.Wrap)
    reported = set()
    for fact in program.facts(facts.Division):
        sizes = bare(fact.by)
        if fact.site in reported or not sizes or not wraps or not program.runs_on_many(fact):
            continue
        if not all(isinstance(atom, WorldSize) and not atom.local for atom in sizes) or REDUCED in reaching(fact.value):
            continue
        reported.add(fact.site)
        guessed = any(isinstance(atom, WorldSize) and atom.named for atom in sizes)
        yield propose(
            program,
            fact,
            INFO if fact.hangs_on_unknown else WARNING if guessed else ERROR,
            "this number of one rank is divided by the number of ranks, and nothing has summed the ranks' numbers up",
            evidence=[place(wraps[0].site, "which averages gradients itself")],
        )._replace(expects=("statement", ""))
