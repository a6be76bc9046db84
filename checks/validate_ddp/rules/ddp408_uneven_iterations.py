"""Ranks take different numbers of batches from a loader that they train on.

## What it does
Compares, for each iteration over a training loader, how many batches each rank was given before it ran out. A last
batch that a rank does nothing with is none, where the run came to its end: the ranks had agreed on when to stop.

## Why is this bad?
Each training step reduces gradients over all ranks. The rank that has one batch more waits for a reduction that nobody
else takes part in: the run hangs, or pairs off with the next epoch's first step.

## Example
```python
loader = DataLoader(files[rank::world_size], batch_size=32)
```

## Use instead
```python
sampler = DistributedSampler(dataset, drop_last=True)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)
```

## References
- [Join](https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html)
"""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.record.culprits import ended, whereabouts
from validate_ddp.record.iterations import Turn, consumed_turns, loader_of
from validate_ddp.record.one_model import sharers
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Note, Observation, Seen, Telling, Well

SEVERITIES = (ERROR,)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(once=True, diverges_before=("DDP401",))


def observe(run: Run) -> Seen:
    """Only of loaders that a rank has run out of: one that is left by a `break` is DDP404's."""
    ranks = sharers(run)
    if not ranks or run.ranks[0] not in ranks:
        return
    first = run.ranks[0]
    mine = {(turn.loader, turn.number): turn for turn in consumed_turns(run, first)}
    found: Observation | None = None
    last: dict[int, float] = {}
    for other in ranks[1:]:
        for turn in consumed_turns(run, other):
            peer = mine.get((turn.loader, turn.number))
            if peer is None or (peer.exhausted is None and turn.exhausted is None):
                continue
            if turn.joined and peer.joined:
                yield Well()
                continue  # those that have run out stand in for their reductions
            (rank, short), (went, longer) = sorted(
                ((first, peer), (other, turn)), key=lambda pair: len(pair[1].batches)
            )
            loader = loader_of(run, rank, short.loader)
            if short.exhausted and len(short.batches) < _batches(run, longer) and loader is not None:
                message = (
                    f"in epoch {turn.number} rank {rank} runs out after {len(short.batches)} batches, rank {went} has "
                    f"at least {len(longer.batches)}: its reductions wait for nobody"
                )
                last.setdefault(rank, short.batches[-1].event.time if short.batches else 0.0)
                found = found or Observation(ERROR, loader.site, message, _where(run), (rank, went))
            else:
                yield Well()
    if found is not None:
        yield found._replace(since=tuple(last.items()))


def _batches(run: Run, turn: Turn) -> int:
    """How many batches the rank went to work with; all, where one may be waiting in what it does with the last."""
    count = len(turn.batches)
    if run.stop is None and not any(run.codes.values()):
        while count and not turn.batches[count - 1].followed:
            count -= 1
    return count


def _where(run: Run) -> tuple[Note, ...]:
    """Where the ranks are, in a run that was ended."""
    notes = [(rank, whereabouts(run, rank)) for rank in sorted(run.where)]
    return tuple(
        note if ended(run, rank) else Note(note.site, f"where rank {rank} is")
        for rank, note in notes
        if note is not None
    )
