"""A run that goes on from a checkpoint counts from another number, or saves something else.

## What it does
Compares what a restarted run (`--restart-at`) counts with the whole run: the backwards that make a step, the scale of
a GradScaler, the steps that are left, and the numbers and tensors that are saved after the same number of steps, by
their key. Where nothing else differs, also the loss of the first step, and what the steps make of the parameters: what
they hang on besides may begin again, as a count that the script keeps for itself.

## Why is this bad?
An epoch that is counted from zero again makes every file name, schedule and stopping rule after it wrong; whatever
the script itself finds worth saving has to be the same after a restart.

## Example
```python
start = 0  # whatever the checkpoint says
for epoch in range(start, epochs):
    train(epoch)
    torch.save({"model": model.state_dict(), "epoch": epoch}, path)
```

## Use instead
```python
start = checkpoint["epoch"] + 1
for epoch in range(start, epochs):
    train(epoch)
    torch.save({"model": model.state_dict(), "epoch": epoch}, path)
```

## References
- [Saving and loading a general checkpoint](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html)
"""

from __future__ import annotations

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.record.restart import COUNTERS, seen_of
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Seen, Telling

SEVERITIES = (ERROR, WARNING)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True)


def observe(run: Run) -> Seen:
    """In a run that goes on from what another has saved."""
    return seen_of(run, COUNTERS)
