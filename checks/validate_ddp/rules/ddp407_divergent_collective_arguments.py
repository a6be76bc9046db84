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
from validate_ddp.record.sequences import FIELDS, Divergence, all_met, divergences
from validate_ddp.record.verdict import Note, Observation, Seen, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (ERROR,)
EVIDENCE = "R"
FIX = "-"


def observe(run: Run) -> Seen:
    """What one rank calls and the other never does is DDP401's and its neighbours'."""
    blamed = {(culprit.rank, culprit.other) for culprit in culprits(run)}
    for divergence in divergences(run):
        if {(divergence.rank, divergence.other), (divergence.other, divergence.rank)}.isdisjoint(blamed):
            yield _observation(divergence)
    if all_met(run):
        yield Well()


def _observation(divergence: Divergence) -> Observation:
    one, two = divergence.mine, divergence.theirs
    call = one or two
    assert call is not None  # a divergence has at least one side
    if one is None or two is None:
        rank = divergence.other if one is None else divergence.rank
        text = f"rank {rank} calls {named(call)}, which the other rank never comes to"
        ranks = (divergence.rank, divergence.other)
        return Observation(ERROR, call.site, text, (), ranks, since=since(divergence))
    if divergence.what == "operation" and _comes_before(two.site, one.site):
        one, two = two, one
        divergence = divergence._replace(rank=divergence.other, other=divergence.rank)
    if divergence.what in ("operation", "order", "call"):
        text = f"ranks call different things as number {divergence.position + 1} of this group: " + "; ".join(
            f"rank {rank} {named(event)} at {short(event.site)}"
            for rank, event in ((divergence.rank, one), (divergence.other, two))
        )
    else:
        text = f"ranks call {named(one)} with another {divergence.what}: " + ", ".join(
            f"rank {rank} {_value(event, divergence.what)}"
            for rank, event in ((divergence.rank, one), (divergence.other, two))
        )
    notes = (Note(two.site, f"the call of rank {divergence.other}"),)
    ranks = (divergence.rank, divergence.other)
    diverges = divergence.what not in FIELDS
    return Observation(ERROR, one.site, text, notes, ranks, since=since(divergence), diverges=diverges)


def _comes_before(one: Site, other: Site) -> bool:
    """Whether a call stands earlier in the function of another: where its rank is behind, or has called too much."""
    mine, theirs = one.own, other.own
    return (mine.path, mine.function) == (theirs.path, theirs.function) and mine.line < theirs.line


def _value(event: protocol.GroupCall, what: str) -> str:
    value = getattr(event, FIELDS[what])
    return str(tuple(value)) if isinstance(value, list) else str(value)
