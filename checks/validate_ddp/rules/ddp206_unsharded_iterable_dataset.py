"""An IterableDataset that gives every rank the same samples.

## What it does
Compares the first batches that ranks of a rehearsal take from the loader of an `IterableDataset` they train on.

## Why is this bad?
No sampler shards an iterable dataset: it has to skip the samples of other ranks itself. Otherwise every rank trains on
the same batches, and N GPUs do the work of one.

## Example
```python
class Stream(IterableDataset):
    def __iter__(self):
        yield from read(self.files)
```

## Use instead
```python
class Stream(IterableDataset):
    def __iter__(self):
        yield from read(self.files[dist.get_rank() :: dist.get_world_size()])
```

## References
- [IterableDataset](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset)
"""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.record.iterations import Turn, loader_of, training_turns
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well

SEVERITIES = (ERROR,)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True)


def observe(run: Run) -> Seen:
    """Compares contents: of an iterable dataset there are no indices."""
    if run.world_size < 2 or len(run.replicas) < 2 or not run.wraps:
        return
    per_rank = [_iterable(run, rank) for rank in run.replicas]
    for number, turn in per_rank[0].items():
        mine = [batch.event.rows for batch in turn.batches]
        for rank, turns in zip(run.replicas[1:], per_rank[1:], strict=True):
            theirs = [batch.event.rows for batch in turns[number].batches] if number in turns else []
            pairs = [(one, two) for one, two in zip(mine, theirs, strict=False) if one and two]
            if not pairs:
                continue
            loader = loader_of(run, run.ranks[0], number)
            if loader and all(one == two for one, two in pairs):
                message = f"ranks {run.ranks[0]} and {rank} get the same {len(pairs)} batches of this iterable dataset"
                yield Observation(ERROR, loader.site, message, (), (run.ranks[0], rank))
            else:
                yield Unclear() if any(one == two for one, two in pairs) else Well()


def _iterable(run: Run, rank: int) -> dict[int, Turn]:
    found: dict[int, Turn] = {}
    for turn in training_turns(run, rank):
        loader = loader_of(run, rank, turn.loader)
        if loader and loader.iterable:
            found.setdefault(turn.loader, turn)
    return found
