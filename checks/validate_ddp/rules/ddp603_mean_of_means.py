"""Means of the ranks are averaged, though the ranks have had different numbers of samples.

## What it does
Looks for an average over the ranks, `ReduceOp.AVG`, after an evaluation in which ranks were given different numbers of
samples.

## Why is this bad?
The mean of the ranks' means is the mean of all only where each rank has as many. Else the samples of the rank with the
smaller share weigh more, and the number changes with the number of GPUs.

## Example
```python
loss = losses.mean()
dist.all_reduce(loss, op=dist.ReduceOp.AVG)
```

## Use instead
```python
sums = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
dist.all_reduce(sums)
loss = sums[0] / sums[1]
```
"""

from __future__ import annotations

from validate_ddp.findings import WARNING
from validate_ddp.record.evaluations import evaluations, reduced
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Note, Observation, Seen, Well

SEVERITIES = (WARNING,)
EVIDENCE = "R"
FIX = "-"


def observe(run: Run) -> Seen:
    """Counts that are averaged too, as those of weighted means, are no means."""
    for of_ranks in evaluations(run):
        sizes = {each.rank: each.size for each in of_ranks}
        first = of_ranks[0]
        averages = [row for row in reduced(first.following) if row[0].reduce == "AVG"]
        if len(set(sizes.values())) == 1 or any(first.size in given for _, given, _ in averages):
            yield from (Well() for _ in averages)
            continue
        for event, _, _ in averages:
            shares = ", ".join(f"{size} on rank {rank}" for rank, size in sizes.items())
            message = f"means of the ranks are averaged, but they are of different numbers of samples: {shares}"
            note = Note(first.turn.site, "the evaluation")
            yield Observation(WARNING, event.site, message, (note,), tuple(sizes))
