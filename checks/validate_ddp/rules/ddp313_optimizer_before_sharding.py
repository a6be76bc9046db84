"""The optimizer was built before the model was sharded, and steps on parameters that are no longer the model's.

## What it does
Looks, at each optimizer step of a rehearsal, whether the optimizer holds parameters that `fully_shard`,
`FullyShardedDataParallel` or `parallelize_module` has replaced by sharded ones since it was built.

The same of an optimizer that was built after a first forward of the sharded model, which leaves the parameters of its
root unsharded until the next backward.

## Why is this bad?
The gradients go to the sharded parameters, which the optimizer does not know. It steps on tensors that nobody reads any
more and that get no gradient: the run goes on without an error, and the model never learns.

## Example
```python
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
fully_shard(model)
```

## Use instead
```python
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
```
FSDP1 with `use_orig_params=True` keeps the parameters, so that either order is right there.

## References
- [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)
- [Parameters that do not update](https://github.com/pytorch/pytorch/issues/149205)
- [Getting started with FSDP2](https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html)
"""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.record.run import Run, Site
from validate_ddp.record.verdict import Note, Observation, Seen, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (ERROR,)
EVIDENCE = "R"
FIX = "-"


def observe(run: Run) -> Seen:
    """Held where a rank steps after its model was sharded, and no optimizer holds what sharding took away."""
    for rank, event in run.each(protocol.Stale):
        optimizer = next((each for each in run.of(rank, protocol.Optimizer) if each.optimizer == event.optimizer), None)
        site: Site = optimizer.site if optimizer else event.site
        yield _observation(rank, event, site, optimizer.kind if optimizer else "optimizer")
    if any(_steps_after_sharding(run, rank) for rank in run.ranks):
        yield Well()


def _observation(rank: int, event: protocol.Stale, site: Site, kind: str) -> Observation:
    when = f"before `{event.kind}`" if event.kind else "when a forward had left the model unsharded"
    message = (
        f"this `{kind}` was built {when}: of the {event.held} parameters that it steps on "
        f"{event.count} are no longer the model's, which does not learn"
    )
    return Observation(ERROR, site, message, (Note(event.site, "sharded here"),), (rank,))


def _steps_after_sharding(run: Run, rank: int) -> bool:
    events = run.of(rank, protocol.Sharded, protocol.Step)
    first = next((at for at, event in enumerate(events) if isinstance(event, protocol.Sharded)), len(events))
    return any(isinstance(event, protocol.Step) for event in events[first:])
