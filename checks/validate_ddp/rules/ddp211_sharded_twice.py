"""The data is shared out twice: each rank trains on a share of its share.

## What it does
Looks, for each loader that the ranks of a rehearsal train on, at all that shares the data out between them: a slice by
rank, a `DistributedSampler`, `accelerator.prepare`; and counts the samples that are nobody's.

## Why is this bad?
Each of them alone is right. One on top of the other leaves 1/N of the data on N GPUs, and the rest is never trained on.
An epoch gets as much shorter, which looks like a gain in speed.

## Example
```python
sampler = DistributedSampler(dataset)
loader = accelerator.prepare(DataLoader(dataset, sampler=sampler))
```

## Use instead
```python
loader = accelerator.prepare(DataLoader(dataset, shuffle=True))
```

## References
- [accelerator.prepare](https://huggingface.co/docs/accelerate/package_reference/accelerator)
- [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
"""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.record.run import Run
from validate_ddp.record.samples import Sharing, has_own_data, sharings, unread
from validate_ddp.record.verdict import Note, Observation, Seen, Telling, Well

SEVERITIES = (ERROR,)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(outranks=("DDP202",))


def observe(run: Run) -> Seen:
    """Only of samplers of torch and Accelerate, of which it is known which share is whose."""
    for sharing in sharings(run):
        levels = sharing.sharding
        if not levels or not all(entry.known for level in levels for entry in level.values()):
            continue
        own = has_own_data(run, sharing)
        ranks = sharing.ranks[:1] if own else sharing.ranks
        if (own or len(levels) > 1) and unread(sharing, ranks):
            loader = next(iter(sharing.loaders.values()))
            notes = (Note(loader.site, "the loader"),) if loader.site.place != sharing.site.place else ()
            message = _message(sharing, own)
            yield Observation(ERROR, sharing.site, message, notes, tuple(sharing.ranks))
        else:
            yield Well()


def _message(sharing: Sharing, own: bool) -> str:
    kinds = [f"`{next(iter(level.values())).kind}`" for level in reversed(sharing.sharding)]
    first = ["a slice of its own on each rank"] if own else []
    by = " and then by ".join([*first, *kinds])
    message = f"the data is shared out twice, by {by}"
    if not sharing.whole:
        return message
    if sharing.own or not own:
        return f"{message}: an epoch reads {len(sharing.counts)} of {sharing.length} samples"
    shares = ", ".join(f"{len(set(read))} of its {sharing.loaders[rank].length}" for rank, read in sharing.read.items())
    return f"{message}: in an epoch the ranks read {shares}"
