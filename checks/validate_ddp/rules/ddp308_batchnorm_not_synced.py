"""BatchNorm under DDP, with so few samples a rank that its statistics are those of a small batch.

## What it does
Looks for BatchNorm modules under DistributedDataParallel, and at how many rows each rank's training forward is given.

## Why is this bad?
Each rank normalises by the mean and variance of its own rows, not of the global batch. With few rows they are noisy,
and the buffers that are saved are those of rank 0 alone.

## Example
```python
model = DDP(resnet50())
```

## Use instead
```python
model = DDP(torch.nn.SyncBatchNorm.convert_sync_batchnorm(resnet50()))
```

## References
- [SyncBatchNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html)
"""

from __future__ import annotations

from validate_ddp.findings import INFO
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (INFO,)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True)
_FEW = 16


def observe(run: Run) -> Seen:
    """Looks at one rank: all have the same model."""
    rank = run.ranks[0] if run.ranks else 0
    most: dict[int, int] = {}
    for event in run.of(rank, protocol.Forward):
        if event.training and event.grad and event.rows:
            most[event.ddp] = max(event.rows, most.get(event.ddp, 0))
    for wrapper in run.of(rank, protocol.Ddp):
        rows = most.get(wrapper.ddp)
        if not rows or not wrapper.batch_norms:
            continue
        if rows <= _FEW:
            message = (
                f"{wrapper.batch_norms} BatchNorm modules see at most {rows} rows on each rank: "
                "`SyncBatchNorm.convert_sync_batchnorm` makes it the global batch"
            )
            yield Observation(INFO, wrapper.site, message, (), (rank,))
        else:
            yield Well()
