"""A mean loss over unequal numbers of targets on the ranks, whose gradients DDP averages as if they were equal.

## What it does
Compares, backward by backward, of how many targets (rows, or tokens that are not ignored) each rank's loss is the mean.

## Why is this bad?
DDP averages the ranks' gradients with equal weights. A rank whose mean is of few tokens pulls as hard as one with many,
so its tokens count more; the model learns from another mixture than it was given, and differently on each number of
GPUs.

## Example
```python
loss = F.cross_entropy(logits, labels, ignore_index=-100)  # 31 tokens here, 400 on another rank
loss.backward()
```

## Use instead
```python
count = (labels != -100).sum()
dist.all_reduce(count)
loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") * world_size / count
loss.backward()
```

## References
- [Fixing gradient accumulation](https://huggingface.co/blog/gradient_accumulation)
"""

from __future__ import annotations

from validate_ddp.findings import INFO, WARNING
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (WARNING, INFO)
EVIDENCE = "R"
FIX = "-"
_UNEQUAL = 1.1
"""How many times more targets on one rank than on another are worth a word."""
_OFTEN = 0.25
"""Share of the backwards from which it is more than the last batch of an epoch."""


class _Backward:
    """Losses taken before one backward, and the numbers and objects that were exchanged since the step before."""

    def __init__(self, losses: list[protocol.MeanLoss], numbers: set[float], objects: bool = False) -> None:
        self.losses = losses
        self.numbers = numbers
        self.objects = objects

    def knows(self, total: int) -> bool:
        """Whether the rank may weigh by a count: it has told of its own, or heard of all."""
        return self.objects or total in self.numbers or any(each.count in self.numbers for each in self.losses)


def observe(run: Run) -> Seen:
    """Of steps whose counts the ranks tell each other nothing is said: they may weigh by them."""
    if run.world_size < 2 or len(run.ranks) < run.world_size or not run.wraps:
        return
    compared, found = 0, []
    for together in zip(*(_backwards(run, rank) for rank in run.ranks), strict=False):
        for losses in zip(*(each.losses for each in together), strict=False):
            if len({each.site.place for each in losses}) > 1:
                continue
            counts = [each.count for each in losses]
            compared += 1
            weighed = any(each.knows(sum(counts)) for each in together)
            if not weighed and max(counts) > _UNEQUAL * min(counts):
                found.append((losses[0], counts))
    if not found:
        yield from [Well()] if compared else ()
        return
    event, counts = max(found, key=lambda pair: max(pair[1]) / max(1, min(pair[1])))
    told = ", ".join(f"{count} on rank {rank}" for rank, count in zip(run.ranks, counts, strict=True))
    message = (
        f"the mean loss is of different numbers of targets ({told}) in {len(found)} of {compared} backwards, and DDP "
        "averages the ranks' gradients as if they were equal"
    )
    severity = WARNING if len(found) > _OFTEN * compared else INFO
    yield Observation(severity, event.site, message, (), tuple(run.ranks))


def _backwards(run: Run, rank: int) -> list[_Backward]:
    """One for each backward of a rank that has taken a mean loss for it."""
    found: list[_Backward] = []
    current = _Backward([], set())
    for event in run.by_rank.get(rank, ()):
        match event:
            case protocol.MeanLoss():
                current.losses.append(event)
            case protocol.Collective():
                current.numbers.update(event.given or ())
                current.objects = current.objects or "object" in event.op
            case protocol.Done():
                current.numbers.update(event.got or ())
            case protocol.Backward():
                if current.losses:
                    found.append(current)
                current = _Backward([], current.numbers, current.objects)
            case protocol.Step():
                current = _Backward(current.losses, set())
    return found
