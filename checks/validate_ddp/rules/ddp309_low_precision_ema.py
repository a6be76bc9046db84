"""A moving average in bfloat16 or float16 that stands still.

## What it does
Looks at the updates of moving averages in a rehearsal (`lerp_`, `mul_` followed by `add_`, their `torch._foreach_`
forms, `AveragedModel.update_parameters`), and counts, for those kept in low precision, the elements that differ from
what they are an average of and are bit for bit the same after the update.

## Why is this bad?
bfloat16 keeps 8 significant bits. With a decay of 0.999 an update is a thousandth of the difference to the weights, far
less than the spacing of the numbers, so it is rounded away: the average stays what it was when it was made. What is
evaluated and published at the end is the model of the first steps.

## Example
```python
ema = copy.deepcopy(model.to(torch.bfloat16))
for average, weight in zip(ema.parameters(), model.parameters()):
    average.lerp_(weight, 1 - 0.999)
```

## Use instead
```python
ema = copy.deepcopy(model).float()
for average, weight in zip(ema.parameters(), model.parameters()):
    average.lerp_(weight.float(), 1 - 0.999)
```

## References
- [EMA weights in float32](https://github.com/d8ahazard/sd_dreambooth_extension/pull/1417)
- [AveragedModel](https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema)
"""

from __future__ import annotations

from validate_ddp.findings import WARNING
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (WARNING,)
EVIDENCE = "R"
FIX = "-"

_ENOUGH = 8
"""Elements that should have moved; of fewer a share says nothing."""
_STILL = 0.5


def observe(run: Run) -> Seen:
    """One finding a line. A decay that still grows has not shown what it will be: neither held nor violated."""
    places: dict[tuple[str, int], list[tuple[int, protocol.Average]]] = {}
    for rank, event in run.each(protocol.Average):
        places.setdefault(event.site.place, []).append((rank, event))
    for updates in places.values():
        low = [(rank, event) for rank, event in updates if event.should is not None]
        if len(low) < len(updates):
            yield Well()
        should = sum(event.should or 0 for _, event in low)
        if should < _ENOUGH or max(event.count for _, event in low) < 2:
            continue
        share = sum(event.still for _, event in low) / should
        if share > _STILL:
            yield _observation(low, share)
        elif len({event.decay for _, event in low}) == 1:
            yield Well()


def _observation(updates: list[tuple[int, protocol.Average]], share: float) -> Observation:
    event = updates[-1][1]
    count = max(each.count for _, each in updates)
    decay = f" (decay {event.decay:g})" if event.decay is not None else ""
    message = (
        f"this moving average is kept in {event.dtype} and stands still: {share:.0%} of the elements that should "
        f"have moved in the first {count} updates did not{decay}; keep it in float32"
    )
    ranks = tuple(sorted({rank for rank, _ in updates}))
    return Observation(WARNING, event.site, message, (), ranks)
