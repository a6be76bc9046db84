"""Ranks meet in a collective with different operations, dtypes, shapes, roots, or in another order.

## What it does
Compares what each rank of a rehearsal calls, position by position, of each process group: the operation, dtype, shape,
ReduceOp, root rank, and the place of the call.

## Why is this bad?
The backends do not compare. gloo accepts float32 against int32, 4 against 6 elements, SUM against MAX, and calls in
swapped order, and gives wrong numbers on all ranks without a word; NCCL does so or hangs.

## Example
```python
for name in set(metrics):  # another order on each rank
    dist.all_reduce(metrics[name])
```

## Use instead
```python
for name in sorted(metrics):
    dist.all_reduce(metrics[name])
```

## References
- [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html)
"""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.record.culprits import culprits, named, short, since
from validate_ddp.record.run import Run, Site
from validate_ddp.record.sequences import FIELDS, Parting, all_met, partings
from validate_ddp.record.verdict import Note, Observation, Seen, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (ERROR,)
EVIDENCE = "R"
FIX = "-"


def observe(run: Run) -> Seen:
    """What one rank calls and the other never does is DDP401's and its neighbours'."""
    blamed = {(culprit.rank, culprit.other) for culprit in culprits(run)}
    for parting in partings(run):
        if {(parting.rank, parting.other), (parting.other, parting.rank)}.isdisjoint(blamed):
            yield _observation(parting)
    if all_met(run):
        yield Well()


def _observation(parting: Parting) -> Observation:
    one, two = parting.mine, parting.theirs
    call = one or two
    assert call is not None  # a parting has at least one side
    if one is None or two is None:
        rank = parting.other if one is None else parting.rank
        text = f"rank {rank} calls {named(call)}, which the other rank never comes to"
        ranks = (parting.rank, parting.other)
        return Observation("DDP407", ERROR, call.site, text, (), ranks, since=since(parting))
    if parting.what == "operation" and _comes_before(two.site, one.site):
        one, two = two, one
        parting = parting._replace(rank=parting.other, other=parting.rank)
    if parting.what in ("operation", "order", "call"):
        text = f"ranks call different things as number {parting.position + 1} of this group: " + "; ".join(
            f"rank {rank} {named(event)} at {short(event.site)}"
            for rank, event in ((parting.rank, one), (parting.other, two))
        )
    else:
        text = f"ranks call {named(one)} with another {parting.what}: " + ", ".join(
            f"rank {rank} {_value(event, parting.what)}" for rank, event in ((parting.rank, one), (parting.other, two))
        )
    notes = (Note(two.site, f"the call of rank {parting.other}"),)
    ranks = (parting.rank, parting.other)
    parts = parting.what not in FIELDS
    return Observation("DDP407", ERROR, one.site, text, notes, ranks, since=since(parting), parts=parts)


def _comes_before(one: Site, other: Site) -> bool:
    """Whether a call stands earlier in the function of another: where its rank is behind, or has called too much."""
    mine, theirs = one.own, other.own
    return (mine.path, mine.function) == (theirs.path, theirs.function) and mine.line < theirs.line


def _value(event: protocol.GroupCall, what: str) -> str:
    value = getattr(event, FIELDS[what])
    return str(tuple(value)) if isinstance(value, list) else str(value)
