"""Weights in bfloat16 or float16 of which most updates are rounded away.

## What it does
Looks, in a rehearsal, at the first steps of torch's own optimizers on weights in low precision, and counts the elements
that have a gradient and are bit for bit the same after the step.

Nothing is said while a schedule warms the learning rate up, and of optimizers from elsewhere, which may keep a copy in
float32 or round at random.

## Why is this bad?
bfloat16 keeps 8 significant bits: around 0.02 the next number is 0.00012 away. A step of Adam with a learning rate of
1e-5 moves a weight by about 1e-5, a tenth of that, so it is rounded away, in every step anew. The loss goes down for a
while, by the few weights that are small enough, and then stays where it is. `torch.autocast` and the mixed precision of
FSDP compute in bfloat16 and keep the weights that the optimizer steps on in float32.

## Example
```python
model = Model().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
```

## Use instead
```python
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = model(x)
```
With FSDP2: `fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))` on a model in float32.

## References
- [Automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html)
- [Stochastic rounding in torchao's low-bit optimizers](https://github.com/pytorch/ao/tree/main/torchao/optim)
- [Revisiting BFloat16 Training](https://arxiv.org/abs/2010.06192)
"""

from __future__ import annotations

from validate_ddp.findings import WARNING
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Note, Observation, Seen, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (WARNING,)
EVIDENCE = "R"
FIX = "-"

_ENOUGH = 64
"""Elements that should have moved; of fewer a share says nothing."""
_LOST = 0.5
_KEPT = 0.1


def observe(run: Run) -> Seen:
    """One finding for each place where such an optimizer was made."""
    made = {(rank, event.optimizer): event.site for rank, event in run.each(protocol.Optimizer)}
    places: dict[tuple[str, int], list[tuple[int, protocol.Rounded]]] = {}
    for rank, event in run.each(protocol.Rounded):
        site = made.get((rank, event.optimizer), event.site)
        places.setdefault(site.place, []).append((rank, event))
    for steps in places.values():
        rank, last = steps[-1]
        site = made.get((rank, last.optimizer), last.site)
        should = sum(event.should for _, event in steps)
        if should < _ENOUGH or last.rate == 0 or _rises([event for _, event in steps]):
            continue
        share = sum(event.still for _, event in steps) / should
        if share > _LOST:
            message = (
                f"these weights are kept in {last.dtype}, and {share:.0%} of their updates are lost: at a learning "
                f"rate of {last.rate:g} they are smaller than the distance to the next number; keep the weights in "
                "float32 and compute in low precision"
            )
            ranks = tuple(sorted({rank for rank, _ in steps}))
            yield Observation(
                WARNING, site, message, (Note(last.site, "the step that leaves them as they were"),), ranks
            )
        elif share < _KEPT:
            yield Well(site)
        else:
            yield Unclear(site)


def _rises(steps: list[protocol.Rounded]) -> bool:
    """Whether the learning rate has yet to come to what it will be, by a schedule or by the script's own hand."""
    by_number = sorted(steps, key=lambda event: (event.optimizer, event.count))
    return steps[-1].rising or by_number[-1].rate > by_number[0].rate
