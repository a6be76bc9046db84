"""An evaluation counts the samples that a DistributedSampler repeats.

## What it does
Adds up what all ranks were given in an evaluation over a `DistributedSampler`, and looks for that number among what the
ranks then add up themselves.

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

from validate_ddp.findings import WARNING
from validate_ddp.record.evaluations import evaluations, reduced
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Note, Observation, Seen, Well

SEVERITIES = (WARNING,)
EVIDENCE = "R"
FIX = "-"


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
