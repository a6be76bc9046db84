"""A split of the data that differs between ranks, so that they train on each other's validation data.

## What it does
Compares what `random_split` gave on each rank of a rehearsal.

## Why is this bad?
Without a shared seed each rank draws its own split. A sample that one rank holds back for validation is trained on by
another: the validation loss is that of training data.

## Example
```python
train_set, val_set = random_split(dataset, [0.9, 0.1])
```

## Use instead
```python
generator = torch.Generator().manual_seed(42)
train_set, val_set = random_split(dataset, [0.9, 0.1], generator=generator)
```

## References
- [random_split](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.random_split)
"""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (ERROR,)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True, silences=("DDP209", "DDP211"))  # other splits: samples are missed, others repeated


def observe(run: Run) -> Seen:
    """Compares the splits of the ranks, in their order."""
    if run.world_size < 2 or len(run.ranks) < 2:
        return
    if len({len(run.of(rank, protocol.Split)) for rank in run.ranks}) > 1:
        yield Unclear()
    first = run.of(run.ranks[0], protocol.Split)
    for rank in run.ranks[1:]:
        for one, two in zip(first, run.of(rank, protocol.Split), strict=False):
            if one.site.place != two.site.place or one.lengths != two.lengths:
                continue
            if one.digests != two.digests:
                message = (
                    f"ranks {run.ranks[0]} and {rank} split the data differently: seed the split alike on all ranks"
                )
                yield Observation(ERROR, one.site, message, (), (run.ranks[0], rank))
            else:
                yield Well()
