"""Gradients are clipped while they are still multiplied by the loss scale, or before the ranks average them.

## What it does
Looks for `clip_grad_norm_` or `clip_grad_value_` after `GradScaler.scale` and before `GradScaler.unscale_`; and before
the all-reduce of a script that averages its gradients itself, where ranks clip by other norms; and before a further
backward adds to the same gradients, as in each of several micro-batches.

## Why is this bad?
The norm is that of the scaled gradients, tens of thousands of times too large, so each step is clipped to almost
nothing, and how much depends on the scale of the moment.

Before an average each rank clips its own gradient by the norm of that: what comes out is not the clipped gradient of
the global batch, and a rank with a large one counts for less. The same holds of micro-batches: the first ones are cut
again and again, the last one counts most, and the norm that is logged is that of no step.

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

from math import prod

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.record.run import Run, once
from validate_ddp.record.updates import parameters
from validate_ddp.record.verdict import Note, Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (ERROR, WARNING)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True)


def observe(run: Run) -> Seen:
    """Looks at every clipping."""
    for rank, event in run.each(protocol.Clip):
        if event.scaled:
            message = "gradients are clipped before `scaler.unscale_(optimizer)`: their norm is that of the scaled loss"
            yield Observation(ERROR, event.site, message, (), (rank,))
    for rank, grown in run.each(protocol.Grown):
        message = "gradients are clipped, and a further backward adds to them before the step: clip their sum, once"
        yield Observation(WARNING, grown.site, message, (), (rank,))
    seen = [sent for rank in run.ranks for sent in _clippings(run, rank)]
    for rank, clip, average in seen:
        if average is None:
            yield Well()
        elif clip.site.place in _apart(run):
            message = "gradients are clipped before the ranks average them: each rank clips its own, by another norm"
            notes = (Note(average.site, "sent to the other ranks here"),)
            yield Observation(WARNING, clip.site, message, notes, (rank,))
        else:
            yield Unclear()


def _clippings(run: Run, rank: int) -> list[tuple[int, protocol.Clip, protocol.Collective | None]]:
    """Each clipping that is not of a scaled loss, with what sends as much as a gradient before the next step."""
    shapes = {tuple(shape) for held in parameters(run, rank).values() for shape in held.shapes}
    total = min((sum(map(prod, held.shapes)) for held in parameters(run, rank).values()), default=0)
    found: list[tuple[int, protocol.Clip, protocol.Collective | None]] = []
    clip: protocol.Clip | None = None
    average: protocol.Collective | None = None
    for event in run.of(rank, protocol.Clip, protocol.Collective, protocol.Step):
        match event:
            case protocol.Clip():
                clip, average = event, None
            case protocol.Collective() if clip and event.shape is not None and event.op.startswith("all_reduce"):
                shape = tuple(event.shape)
                if shape in shapes or prod(shape) >= total > 0:
                    average = average or event
            case protocol.Step() if clip:
                if not clip.scaled:
                    found.append((rank, clip, average))
                clip = average = None
    return found


@once
def _apart(run: Run) -> set[tuple[str, int]]:
    """The lines at which ranks were seen to clip by other norms."""
    told = [[clip for clip in run.of(rank, protocol.Clip) if not clip.scaled] for rank in run.ranks]
    return {
        clips[0].site.place
        for clips in zip(*told, strict=False)
        if len({clip.norm for clip in clips}) > 1
        and len({clip.site.place for clip in clips}) == 1
        and all(clip.norm is not None for clip in clips)
    }
