"""Gradients are clipped while they are still multiplied by the loss scale.

## What it does
Looks for `clip_grad_norm_` or `clip_grad_value_` after `GradScaler.scale` and before `GradScaler.unscale_`.

## Why is this bad?
The norm is that of the scaled gradients, tens of thousands of times too large, so each step is clipped to almost
nothing, and how much depends on the scale of the moment.

## Example
```python
scaler.scale(loss).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
```

## Use instead
```python
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
```

## References
- [Gradient clipping with a scaler](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping)
"""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (ERROR,)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True)


def observe(run: Run) -> Seen:
    """Looks at every clipping."""
    for rank, event in run.each(protocol.Clip):
        if event.scaled:
            message = "gradients are clipped before `scaler.unscale_(optimizer)`: their norm is that of the scaled loss"
            yield Observation(ERROR, event.site, message, (), (rank,))
        else:
            yield Well()
