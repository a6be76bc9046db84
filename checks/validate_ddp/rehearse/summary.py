"""What a run was, in numbers: a table that people compare with what they meant."""

from __future__ import annotations

from collections import Counter
from typing import TypedDict

from validate_ddp.record.iterations import Turn, loader_of, training_turns
from validate_ddp.record.one_model import sharers
from validate_ddp.record.run import Run
from validate_ddp.record.samples import has_own_data, is_whole, sharing_of
from validate_ddp.record.updates import common_steps, differing, holds_wrapped, replicas_equal, updates
from validate_ddp.rehearse.at_size import AtSize, at_size
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol


class Samples(TypedDict):
    """Indices of an epoch; missed: None where it was not whole."""

    in_data_set: int
    seen: int
    repeated: int
    missed: int | None


class Replicas(TypedDict):
    """Parameters after each step. parameters_apart: how many differ between ranks, by step."""

    steps_compared: int
    equal: bool
    first_difference: int | None
    parameters_apart: list[int]


class Checkpoint(TypedDict):
    """A file that ranks have saved."""

    path: str
    ranks: list[int]


class Facts(TypedDict):
    """The observed facts, as they are in the report; None for what the run has not shown.

    batch_size: rows of the largest batch of a rank. accumulation: backwards a step, of the optimizer with most steps.
    effective_batch_size: rows that all ranks take from their loader for a step of it. samples: of the first epoch.
    reductions_per_step: backwards that reduce, where DistributedDataParallel does it. replicas: whether the parameters
    were equal on all ranks after each step that could be compared. devices: by rank. checkpoints: path and ranks that
    wrote it.
    """

    world_size: int
    ranks_observed: int
    batch_size: int | None
    accumulation: int | None
    effective_batch_size: int | None
    optimizer_steps: int | None
    optimizer_steps_per_epoch: int | None
    epochs: int | None
    reductions_per_step: int | None
    samples: Samples | None
    replicas: Replicas | None
    partition: dict[str, object] | None
    restart: dict[str, object] | None
    devices: dict[str, list[int]]
    checkpoints: list[Checkpoint]
    changed_for_the_rehearsal: list[str]
    at_size: AtSize | None


def facts(run: Run) -> Facts:
    """What was observed."""
    rank = run.ranks[0] if run.ranks else 0
    steps = updates(run, rank)
    main = max(steps, key=lambda number: (holds_wrapped(run, rank, number), len(steps[number])), default=None)
    taken = steps[main] if main is not None else []
    turns = [turn for turn in training_turns(run, rank) if turn.batches]
    sizes = [batch.event.size for turn in turns for batch in turn.batches if batch.event.size]
    batch_size = max(sizes) if sizes else _rows(run, rank)
    backwards = [update.last_backwards for update in taken if update.last_backwards]
    accumulation = _usual([len(each) for each in backwards])
    reductions = _usual([sum(bool(one.armed) for one in each) for each in backwards]) if run.wraps else None
    batches = _batches_per_step(run, rank, turns, main, backwards) or accumulation or 1
    readers = max((event.size for _, event in run.each(protocol.Moved) if event.group in _reducing(run)), default=0)
    effective = batch_size * batches * (readers or len(run.group) or _readers(run)) if batch_size else None
    return {
        "world_size": run.world_size,
        "ranks_observed": len(run.ranks),
        "batch_size": batch_size,
        "accumulation": accumulation,
        "effective_batch_size": effective,
        "optimizer_steps": len(taken) if taken else None,
        "optimizer_steps_per_epoch": _steps_per_epoch(run, rank, main),
        "epochs": len({(turn.loader, turn.number) for turn in turns}) or None,
        "reductions_per_step": reductions,
        "samples": _samples(run),
        "replicas": _replicas(run, main),
        "partition": _plain(run.partition),
        "restart": _plain(run.restart),
        "devices": {str(rank): sorted({event.index for event in run.of(rank, protocol.Device)}) for rank in run.ranks},
        "checkpoints": _checkpoints(run),
        "changed_for_the_rehearsal": list(run.shim),
        "at_size": at_size(run) if run.simulated else None,
    }


def _plain(event: protocol.Event | None) -> dict[str, object] | None:
    """As it is told, in plain data."""
    if event is None:
        return None
    rows = ((name, value) for name, value in event.plain().items())
    return {name: [_row(each) for each in value] if isinstance(value, list) else value for name, value in rows}


def _row(value: object) -> object:
    return value.plain() if isinstance(value, protocol.Record) else value


def _rows(run: Run, rank: int) -> int | None:
    rows = [event.rows for event in run.of(rank, protocol.Forward) if event.rows and event.grad]
    return max(rows) if rows else None


def _readers(run: Run) -> int:
    """How many ranks read data of their own, where neither a wrapper nor FSDP tells: one, where all were seen to read
    the same and nothing joins their gradients, as those do that split a model between them."""
    first = [next((batch.event.rows for turn in training_turns(run, rank) for batch in turn.batches), None)
             for rank in run.ranks]  # fmt: skip
    alike = len(first) == run.world_size and all(first) and all(rows == first[0] for rows in first)
    return 1 if alike and not sharers(run) else run.world_size


def _reducing(run: Run) -> set[str | None]:
    """The groups of wrappers, of ranks that were run alone: not all members are named."""
    return {event.group for _, event in run.each(protocol.Forward)} if run.simulated else set()


def _usual(counts: list[int]) -> int | None:
    return Counter(counts).most_common(1)[0][0] if counts else None


def _batches_per_step(
    run: Run, rank: int, turns: list[Turn], main: int | None, backwards: list[list[protocol.Backward]]
) -> int | None:
    """Batches that are taken between two steps, from the loader that most are taken from: there may be several
    backwards of one batch, as of the two halves of a discriminator's. None where there is one backward of each batch:
    then those are counted, as a loader may take batches ahead."""
    taken = Counter(turn.loader for turn in turns for _ in turn.batches)
    if not taken:
        return None
    loader = taken.most_common(1)[0][0]
    counts = [0]
    for event in run.of(rank, protocol.Batch, protocol.Step):
        if isinstance(event, protocol.Batch):
            counts[-1] += event.loader == loader
        elif event.optimizer == main:
            counts.append(0)
    epochs = sum(turn.loader == loader for turn in turns)
    if abs(sum(counts[:-1]) - sum(map(len, backwards))) <= epochs:
        return None
    found = Counter(count for count in counts[:-1] if count)
    return min((count for count in found if found[count] == max(found.values())), default=None)


def _steps_per_epoch(run: Run, rank: int, main: int | None) -> int | None:
    if main is None:  # the steps of an optimizer that is none of torch's are not seen
        return None
    counts = [
        sum(step.optimizer == main for batch in turn.batches for step in batch.steps)
        for turn in training_turns(run, rank)
        if turn.exhausted is not None or is_whole(loader_of(run, rank, turn.loader), turn)
    ]
    return _usual(counts)


def first_epoch(run: Run) -> tuple[int, dict[int, list[int]], bool] | None:
    """Of the first iteration over the first training loader: samples in the data set, the indices that each rank was
    given, in their order, and whether the iterations were whole. None where indices are not known.

    Where each rank has a part of its own of one data set, the indices are those of the whole.
    """
    first: dict[int, Turn] = {}
    for rank in run.replicas:
        turn = next((turn for turn in training_turns(run, rank) if turn.batches), None)
        if turn is None:
            return None
        first[rank] = turn
    sharing = sharing_of(run, first) if first else None
    if sharing is not None and not sharing.own and has_own_data(run, sharing):
        return None  # equal indices are other samples on each rank
    return (sharing.length, sharing.read, sharing.whole) if sharing is not None else None


def _samples(run: Run) -> Samples | None:
    epoch = None if run.simulated else first_epoch(run)  # of all ranks
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


def _replicas(run: Run, number: int | None) -> Replicas | None:
    """Of what the optimizer ``number`` holds, under a wrapper and beside it. None where no step could be compared."""
    if number is None or run.world_size < 2 or len(run.ranks) != run.world_size:
        return None
    steps = []
    if not holds_wrapped(run, run.ranks[0], number) and list(run.each(protocol.Sharded)):
        return None  # each rank holds a part of its own
    for count in range(1, common_steps(run, number) + 1):
        if replicas_equal(run, number, count) is not None:
            apart = [len(differing(run, number, count, "params", wrapped=each)) for each in (True, False)]
            steps.append((count, sum(apart)))
    if not steps:
        return None
    first = next((count for count, apart in steps if apart), None)
    return {
        "steps_compared": len(steps),
        "equal": first is None,
        "first_difference": first,
        "parameters_apart": [apart for _, apart in steps],
    }


def _checkpoints(run: Run) -> list[Checkpoint]:
    """By the names that they have in the end, without those whose saving failed."""
    found: dict[str, set[int]] = {}
    for rank, event in run.each(protocol.Save, protocol.Unsaved, protocol.Renamed):
        match event:
            case protocol.Save() if event.path is not None:
                found.setdefault(event.path, set()).add(rank)
            case protocol.Unsaved() if event.path is not None:
                found.get(event.path, set()).discard(rank)
            case protocol.Renamed():
                for former in [each for each in found if (each + "/").startswith(event.source + "/")]:
                    found.setdefault(event.path + former[len(event.source) :], set()).update(found.pop(former))
    found = {path: ranks for path, ranks in found.items() if ranks}
    return [{"path": path, "ranks": sorted(ranks)} for path, ranks in found.items()]
