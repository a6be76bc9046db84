"""The gradient on several ranks is not that of one process on the same global batch.

## What it does
With `--differential`, repeats the first step twice, without dropout and from the same weights: on all ranks, and in one
process that is given the batches of all ranks, joined. Compares the gradients that the optimizer is given.

## Why is this bad?
Data-parallel training is to be the training of one process on a larger batch. Where it is not, the learning rate, the
loss, or what the loss compares with what means something else on each number of GPUs. The factor between the two
gradients often names the cause: the number of ranks, or one over it, is a sum in place of a mean.

## Example
```python
loss = criterion(model(x), y) * world_size
```

## Use instead
```python
loss = criterion(model(x), y)
```

## References
- [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
"""

from __future__ import annotations

from validate_ddp.findings import INFO, WARNING
from validate_ddp.record.run import NOWHERE, Run, Site
from validate_ddp.record.verdict import Observation, Seen, Well

SEVERITIES = (WARNING, INFO)
EVIDENCE = "R"
FIX = "-"
_CLOSE = {True: 1e-4, False: 1e-3}
"""Relative distance that rounding explains, by whether the model was computed in float64; the loss is in float32."""


def observe(run: Run) -> Seen:
    """A BatchNorm that normalises by each rank's own rows explains a difference: info, and DDP308 says more."""
    event = run.differential
    if event is None or not event.compared or event.relative is None:
        return
    if event.relative <= _CLOSE[event.float64]:
        yield Well()
        return
    size = event.world_size
    message = f"the gradient of the first step on {size} ranks is {event.relative:.2g} of its norm away from that of "
    message += "one process on the same batch"
    factor, beside = event.factor, event.beside
    if factor is not None and beside is not None and beside <= 10 * _CLOSE[event.float64]:
        message = (
            f"the gradient of the first step on {size} ranks is {factor:.3g} times that of one process on the same "
        )
        message += "batch"
    elif event.worst:
        message += f", most of all in `{event.worst}`"
    if event.batch_norms:
        message += f": {event.batch_norms} BatchNorm modules normalise by each rank's own rows"
    site = Site((event.place,)) if event.place else NOWHERE
    severity = INFO if event.batch_norms else WARNING
    yield Observation(severity, site, message, (), tuple(run.ranks))
