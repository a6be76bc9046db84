"""What a run was, in numbers: a table that people compare with what they meant."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

from validate_ddp.rehearse.iterations import Rows, contents, in_common, loader_of, training_turns
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.updates import agree, common_steps, differing, holds_wrapped, updates

Facts = dict[str, Any]


def facts(run: Run) -> Facts:
    """The observed facts; None for what the run has not shown.

    batch_size: rows of the largest batch of a rank. accumulation: backwards a step, of the optimizer with most steps.
    effective_batch_size: of all ranks and micro-batches. samples: of the first epoch. reductions_per_step: backwards
    that reduce. replicas: whether the parameters under DDP were equal on all ranks after each step that could be
    compared. checkpoints: path and ranks that wrote it.
    """
    rank = run.ranks[0] if run.ranks else 0
    steps = updates(run, rank)
    main = max(steps, key=lambda number: (holds_wrapped(run, rank, number), len(steps[number])), default=None)
    taken = steps[main] if main is not None else []
    turns = [turn for turn in training_turns(run, rank) if turn.batches]
    sizes = [batch.event["size"] for turn in turns for batch in turn.batches if batch.event.get("size")]
    batch_size = max(sizes) if sizes else _rows(run, rank)
    accumulation = _usual([len(update.backwards) for update in taken if update.backwards])
    reductions = _usual([sum(bool(each["armed"]) for each in update.backwards) for update in taken if update.backwards])
    effective = batch_size * (accumulation or 1) * run.world_size if batch_size else None
    return {
        "world_size": run.world_size,
        "ranks_observed": len(run.ranks),
        "batch_size": batch_size,
        "accumulation": accumulation,
        "effective_batch_size": effective,
        "optimizer_steps": len(taken) if taken else None,
        "optimizer_steps_per_epoch": _steps_per_epoch(run, rank),
        "epochs": len({(turn.loader, turn.number) for turn in turns}) or None,
        "reductions_per_step": reductions,
        "samples": _samples(run),
        "replicas": _replicas(run, main),
        "differential": run.differential,
        "devices": {str(rank): sorted({event["index"] for event in run.of(rank, "device")}) for rank in run.ranks},
        "checkpoints": _checkpoints(run),
        "changed_for_the_rehearsal": list(run.shim),
    }


def _rows(run: Run, rank: int) -> int | None:
    rows = [event["rows"] for event in run.of(rank, "forward") if event.get("rows") and event["grad"]]
    return max(rows) if rows else None


def _usual(counts: list[int]) -> int | None:
    return Counter(counts).most_common(1)[0][0] if counts else None


def _steps_per_epoch(run: Run, rank: int) -> int | None:
    counts = [
        sum(len(batch.steps) for batch in turn.batches)
        for turn in training_turns(run, rank)
        if turn.exhausted is not None
    ]
    return _usual(counts)


def first_epoch(run: Run) -> tuple[int, dict[int, list[int]], bool] | None:
    """Of the first iteration over the first training loader: samples in the data set, the indices that each rank was
    given, in their order, and whether the iterations were whole. None where indices are not known, or where each rank
    counts those of a share of its own."""
    read: dict[int, list[int]] = {}
    held: dict[int, Rows] = {}
    length = None
    whole = True
    for rank in run.ranks:
        turn = next((turn for turn in training_turns(run, rank) if turn.batches), None)
        if turn is None:
            return None
        loader = loader_of(run, rank, turn.loader)
        length = loader["length"] if loader else None
        whole = whole and bool(turn.exhausted)
        read[rank] = [index for indices in turn.indices for index in indices]
        held[rank] = contents(turn)
    if not any(read.values()) or length is None or _are_of_shares(list(held.values())):
        return None
    return length, read, whole


def _are_of_shares(held: list[Rows]) -> bool:
    """Whether two ranks read different samples under most of their indices; a few that both read may only have been
    augmented anew."""
    for one, two in combinations(held, 2):
        equal = sum(bool(row and two.get(index)) for index, row in one.items())
        if equal > 0.5 * min(len(one), len(two)) and not in_common(one, two)[0]:
            return True
    return False


def _samples(run: Run) -> Facts | None:
    epoch = first_epoch(run)
    if epoch is None:
        return None
    length, read, whole = epoch
    counts = Counter(index for indices in read.values() for index in indices)
    return {
        "in_data_set": length,
        "seen": len(counts),
        "repeated": sum(count > 1 for count in counts.values()),
        "missed": max(0, length - len(counts)) if whole else None,
    }


def _replicas(run: Run, number: int | None) -> Facts | None:
    """Of the optimizer ``number``; None where no step could be compared."""
    if number is None or run.world_size < 2 or len(run.ranks) != run.world_size:
        return None
    steps = []
    for count in range(1, common_steps(run, number) + 1):
        apart = differing(run, number, count, "params", wrapped=True)
        if apart or agree(run, number, count, "params", wrapped=True):
            steps.append((count, len(apart)))
    if not steps:
        return None
    first = next((count for count, apart in steps if apart), None)
    return {
        "steps_compared": len(steps),
        "equal": first is None,
        "first_difference": first,
        "parameters_apart": [apart for _, apart in steps],
    }


def _checkpoints(run: Run) -> list[Facts]:
    found: dict[str, set[int]] = {}
    for rank, event in run.each("save"):
        if event["path"] is not None:
            found.setdefault(event["path"], set()).add(rank)
    return [{"path": path, "ranks": sorted(ranks)} for path, ranks in found.items()]
