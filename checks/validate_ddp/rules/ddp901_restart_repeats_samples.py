"""A run that goes on from a checkpoint learns from samples again, or leaves some out.

## What it does
Compares the batches of the run that goes on (`--restart-at`) with those that the whole run learns from in the same
steps, by content and by their numbers in the data set. Where the order is another, or the number of ranks, the
samples of the epoch are compared as a set: each has to be learned from once. Where no longer run is there to compare
with, as the script saves only at its end, it is a warning that the first batch is one of an epoch that was not over.

## Why is this bad?
A job of weeks is restarted many times. If each restart begins the epoch anew, the first samples of an epoch are
learned from again and again, and the last ones never; nothing fails, and the loss looks better than it is.

## Example
```python
for epoch in range(start_epoch, epochs):
    sampler.set_epoch(epoch)
    for batch in loader:  # in the middle of an epoch it begins again
        step(batch)
```

## Use instead
```python
for epoch in range(start_epoch, epochs):
    sampler.set_epoch(epoch)
    for number, batch in enumerate(loader):
        if epoch == start_epoch and number < batches_done:
            continue
        step(batch)
```

## References
- [Saving and loading a general checkpoint](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html)
"""

from __future__ import annotations

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.record.restart import SAMPLES, seen_of
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Seen, Telling

SEVERITIES = (ERROR, WARNING)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True)


def observe(run: Run) -> Seen:
    """In a run that goes on from what another has saved."""
    return seen_of(run, SAMPLES)
