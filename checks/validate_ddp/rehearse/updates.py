"""What lies between two optimizer steps of a rank, and whether ranks agree on gradients and parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from weakref import WeakKeyDictionary

from validate_ddp.rehearse.log import Event
from validate_ddp.rehearse.run import Run


@dataclass
class Update:
    """One optimizer step, with what happened since the same optimizer's step before."""

    step: Event
    forwards: list[Event] = field(default_factory=list)
    bypasses: list[Event] = field(default_factory=list)
    backwards: list[Event] = field(default_factory=list)
    last_backwards: list[Event] = field(default_factory=list)
    """Those among them with no step of any optimizer in between: not the ones of a GAN's other network."""
    dropped: list[tuple[Event, list[Event]]] = field(default_factory=list)
    """Calls of zero_grad that threw gradients away, each with the backwards that had made them."""


def updates(run: Run, rank: int) -> dict[int, list[Update]]:
    """The steps of a rank by optimizer."""
    found: dict[int, list[Update]] = {}
    pending: dict[int, Update] = {}
    fresh: dict[int, list[Event]] = {}
    unused: list[Event] = []
    stepped = False
    for event in run.by_rank.get(rank, ()):
        kind = event["event"]
        if kind == "optimizer":
            pending[event["optimizer"]] = Update(event)
            fresh[event["optimizer"]] = []
        elif kind in ("forward", "inner_forward", "backward"):
            if kind == "backward":
                unused, stepped = ([event], False) if stepped else ([*unused, event], False)
            for number, update in pending.items():
                {"forward": update.forwards, "inner_forward": update.bypasses}.get(kind, update.backwards).append(event)
                if kind == "backward":
                    fresh[number].append(event)
        elif kind == "zero_grad" and event["had"]:
            for number, update in pending.items():
                if event["optimizer"] in (None, number) and fresh[number]:
                    update.dropped.append((event, fresh[number]))
                    fresh[number] = []
        elif kind == "step" and event["optimizer"] in pending:
            number = event["optimizer"]
            pending[number].step, pending[number].last_backwards, stepped = event, unused, True
            found.setdefault(number, []).append(_last_evaluation(pending[number]))
            pending[number] = Update(event)
            fresh[number] = []
    return found


def _last_evaluation(update: Update) -> Update:
    """Without the evaluations of a closure that the optimizer itself calls, as LBFGS does, but for the last one."""
    step = update.step["site"].place
    repeated: set[int] = set()
    kept = []
    for zero, lost in update.dropped:
        if any((frame.path, frame.line) == step for frame in zero["site"].frames[1:]):
            repeated.update(id(each) for each in lost)
        else:
            kept.append((zero, lost))
    if repeated:
        update.dropped = kept
        update.backwards = [each for each in update.backwards if id(each) not in repeated]
        update.last_backwards = [each for each in update.last_backwards if id(each) not in repeated]
    return update


def parameters(run: Run, rank: int) -> dict[int, Event]:
    """The names and shapes of what each optimizer holds."""
    return {event["optimizer"]: event for event in run.of(rank, "parameters")}


def differing(run: Run, number: int, count: int, what: str, wrapped: bool) -> list[int]:
    """Positions of an optimizer's parameters on which ranks differ at one step.

    count: of the step, from 1. what: "grads" or "params". wrapped: of those under DDP, or of the others. Nothing where
    ranks do not hold the same parameters, as with sharded ones.
    """
    return [at for at, equal in _compared(run, number, count, what, wrapped) if not equal]


def agree(run: Run, number: int, count: int, what: str, wrapped: bool) -> bool:
    """Whether ranks were seen to agree on all that ``differing`` compares; False where there is nothing to compare."""
    compared = list(_compared(run, number, count, what, wrapped))
    return bool(compared) and all(equal for _, equal in compared)


def replicas_equal(run: Run, number: int, count: int) -> bool | None:
    """Whether ranks hold the same after a step, under DDP or not; None where there is nothing to compare."""
    compared = [equal for wrapped in (True, False) for _, equal in _compared(run, number, count, "params", wrapped)]
    return all(compared) if compared else None


def _compared(run: Run, number: int, count: int, what: str, wrapped: bool) -> Iterator[tuple[int, bool]]:
    """Positions of an optimizer's parameters that every rank has told of at a step, and whether all ranks agree."""
    told = [parameters(run, rank).get(number) for rank in run.replicas]
    if len(told) < 2 or any(each is None or each["shapes"] != (told[0] or {})["shapes"] for each in told):
        return
    steps = taken(run, number, count)
    if len(steps) < len(run.replicas) or any(not step.get(what) for step in steps):
        return
    for at, name in enumerate((told[0] or {})["names"]):
        values = {step[what][at] for step in steps}
        if (name is not None) is wrapped and None not in values:
            yield at, len(values) == 1


def averaged_by_hand(run: Run, number: int) -> bool:
    """Whether the script itself reduces tensors shaped as all that an optimizer holds, or one as long as all of it, and
    steps on: what comes after the last step may only compare the ranks."""
    rank = run.ranks[0]
    held = Counter(tuple(shape) for shape in parameters(run, rank)[number]["shapes"])
    length = sum(prod(shape) * count for shape, count in held.items())
    events = run.of(rank, "collective", "step")
    last = max(
        (at for at, event in enumerate(events) if event["event"] == "step" and event["optimizer"] == number), default=0
    )
    reduced = [each for each in events[:last] if each["event"] == "collective" and each["op"].startswith("all_reduce")]
    shapes = Counter(tuple(event["shape"]) for event in reduced if event.get("shape") is not None)
    return held <= shapes or (held.total() > 1 and (length,) in shapes)


_taken: WeakKeyDictionary[Run, dict[tuple[int, int, int], Event]] = WeakKeyDictionary()


def taken(run: Run, number: int, count: int) -> list[Event]:
    """One step of an optimizer on each rank that has taken it."""
    index = _taken.get(run)
    if index is None:
        index = _taken[run] = {(rank, event["optimizer"], event["count"]): event for rank, event in run.each("step")}
    return [index[rank, number, count] for rank in run.replicas if (rank, number, count) in index]


def holds_wrapped(run: Run, rank: int, number: int) -> bool:
    """Whether an optimizer holds parameters that DDP wraps."""
    held = parameters(run, rank).get(number)
    return held is not None and any(name is not None for name in held["names"])


def wrapped_steps(run: Run) -> Iterator[tuple[int, int, Update]]:
    """The first rank's steps which every rank has taken, of optimizers that hold what DDP wraps.

    Each with the optimizer's number, and its own number from 1.
    """
    rank = run.ranks[0] if run.ranks else 0
    for number, steps in updates(run, rank).items():
        if holds_wrapped(run, rank, number):
            for count, update in enumerate(steps[: common_steps(run, number)], 1):
                yield number, count, update


def common_steps(run: Run, number: int) -> int:
    """Steps of an optimizer that every rank has taken."""
    return min(len([event for event in run.of(rank, "step") if event["optimizer"] == number]) for rank in run.replicas)
