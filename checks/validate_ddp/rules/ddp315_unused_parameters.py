"""Parameters under DDP that no step gives a gradient.

## What it does
Names the parameters under DistributedDataParallel, held by an optimizer, that have no gradient at any step.

## Why is this bad?
DDP waits for every parameter's gradient. With `find_unused_parameters=False` the next forward raises; with `True` each
step pays for a search. A layer that is never trained is mostly a slip.

## Example
```python
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.old_head, self.head = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))
```

## Use instead
```python
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
```

## References
- [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
"""

from __future__ import annotations

from validate_ddp.findings import WARNING
from validate_ddp.record.run import Run
from validate_ddp.record.updates import holds_wrapped, parameters, updates
from validate_ddp.record.verdict import Observation, Seen, Telling, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (WARNING,)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True)


def observe(run: Run) -> Seen:
    """Looks at one rank's steps."""
    rank = run.ranks[0] if run.ranks else 0
    for number, steps in updates(run, rank).items():
        trained = [grads for update in steps if update.backwards and (grads := update.step.grads)]
        if not trained or not holds_wrapped(run, rank, number):
            continue
        names = parameters(run, rank)[number].names
        unused = [
            name[1]
            for at, name in enumerate(names)
            if name is not None and all(grads[at] is None for grads in trained if at < len(grads))
        ]
        if unused and len(unused) < len(names):
            wrapper = run.of(rank, protocol.Ddp)[0]
            message = f"{len(unused)} parameters under DDP never get a gradient: {', '.join(unused[:4])}"
            yield Observation(WARNING, wrapper.site, message, (), (rank,))
        else:
            yield Well()
