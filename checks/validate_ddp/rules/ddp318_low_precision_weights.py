"""Weights in bfloat16 or float16 of which most updates are rounded away.

## What it does
Looks, in a rehearsal, at steps of torch's own optimizers on weights in low precision, and counts the elements that have
a gradient and are bit for bit the same after the step. Told where these are most, or all of one parameter, as of a norm
whose weights are about 1.

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
_FULL = 0.9


def observe(run: Run) -> Seen:
    """One finding for each place where such an optimizer was made."""
    made = {(rank, event.optimizer): event.site for rank, event in run.each(protocol.Optimizer)}
    places: dict[tuple[str, int], list[tuple[int, protocol.Rounded]]] = {}
    for rank, event in run.each(protocol.Rounded):
        site = made.get((rank, event.optimizer), event.site)
        places.setdefault(site.place, []).append((rank, event))
    for seen in places.values():
        steps = _at_full_rate(seen)
        should = sum(event.should for _, event in steps)
        if should < _ENOUGH:
            continue
        rank, last = steps[-1]
        site = made.get((rank, last.optimizer), last.site)
        share = sum(event.still for _, event in steps) / should
        stuck = min(event.stuck for _, event in steps)
        if share > _LOST or stuck:
            notes = (Note(last.site, "the step that leaves them as they were"),)
            ranks = tuple(sorted({rank for rank, _ in steps}))
            yield Observation(WARNING, site, _told(last, share, stuck), notes, ranks)
        elif share < _KEPT:
            yield Well(site)
        else:
            yield Unclear(site)


def _told(last: protocol.Rounded, share: float, stuck: int) -> str:
    if share > _LOST:
        lost = f"and {share:.0%} of their updates are lost"
    else:
        lost = f"and {stuck} of {last.tensors} parameters do not move at all, though they have a gradient"
    return (
        f"these weights are kept in {last.dtype}, {lost}: at a learning rate of {last.rate:g} updates are smaller than "
        "the distance to the next number; keep the weights in float32 and compute in low precision"
    )


def _at_full_rate(steps: list[tuple[int, protocol.Rounded]]) -> list[tuple[int, protocol.Rounded]]:
    """The steps at the learning rate that is the highest; none where that may still grow, by a schedule or by hand."""
    highest = max(event.rate for _, event in steps)
    first, last = min(event.count for _, event in steps), max(event.count for _, event in steps)
    before = [event.rate for _, event in steps if event.count < last or first == last]
    if not highest or max(before) < highest:
        return []
    return [(rank, event) for rank, event in steps if event.rate >= highest * _FULL and not event.rising]
