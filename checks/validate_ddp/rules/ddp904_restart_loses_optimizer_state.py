"""A run that goes on from a checkpoint has lost the optimizer's state, or some of it.

## What it does
Compares the optimizer's state of every parameter (moments, counts of steps) before the first step after a restart
(`--restart-at`) with what it was in the run that was ended; on another number of ranks whole tensors. The state of an
optimizer that the script has written itself is not seen: it is lost where a step makes other parameters than in the
whole run, of the same weights, samples and loss, and the next loss is another one.

## Why is this bad?
Adam without its moments takes steps of full size in directions of a single batch: the loss jumps at each restart, and
the weights move away from where they were. A state that comes to other parameters is worse, and as silent.

## Example
```python
model.load_state_dict(checkpoint["model"])
optimizer = AdamW(model.parameters(), lr=3e-4)
```

## Use instead
```python
model.load_state_dict(checkpoint["model"])
optimizer = AdamW(model.parameters(), lr=3e-4)
optimizer.load_state_dict(checkpoint["optimizer"])
```

## References
- [Saving and loading a general checkpoint](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html)
"""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.record.restart import STATE, seen_of
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Seen, Telling

SEVERITIES = (ERROR,)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True)


def observe(run: Run) -> Seen:
    """In a run that goes on from what another has saved."""
    return seen_of(run, STATE)
