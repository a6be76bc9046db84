"""What lies between two optimizer steps of a rank, and whether ranks agree on gradients and parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from math import prod
from typing import Literal, NamedTuple

from validate_ddp.record.run import Run, Site, once
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol


class Spans(NamedTuple):
    """Where each list of a rank's events stands."""

    forwards: int
    bypasses: int
    backwards: int


class Calls:
    """What a rank has called, in order. An update is a part of it: several optimizers share one list."""

    def __init__(self) -> None:
        self.forwards: list[protocol.Forward] = []
        self.bypasses: list[protocol.InnerForward] = []
        self.backwards: list[protocol.Backward] = []

    def spans(self) -> Spans:
        """How far the lists have come."""
        return Spans(len(self.forwards), len(self.bypasses), len(self.backwards))


Dropped = tuple[protocol.ZeroGrad, list[protocol.Backward]]
_NONE: list[Dropped] = []


class Update:
    """One optimizer step, with what happened since the same optimizer's step before.

    step: its event. last_from: from which backward on there is no step of any optimizer in between. dropped: calls of
    zero_grad that threw gradients away, each with the backwards that had made them. repeated: backwards that do not
    count.
    """

    __slots__ = ("_before", "_calls", "_step", "_until", "dropped", "last_from", "repeated")

    def __init__(self, step: protocol.Step | protocol.Optimizer, calls: Calls, before: Spans) -> None:
        self._step = step
        self._calls = calls
        self._before = self._until = before
        self.last_from = self._before.backwards
        self.dropped: list[Dropped] = _NONE
        self.repeated: Set[int] = frozenset()

    def end(self, step: protocol.Step, last_from: int, until: Spans) -> None:
        """The step has come."""
        self._step, self.last_from, self._until = step, last_from, until

    def drop(self, event: protocol.ZeroGrad, lost: list[protocol.Backward]) -> None:
        """A zero_grad has thrown gradients away."""
        if not self.dropped:
            self.dropped = []
        self.dropped.append((event, lost))

    @property
    def step(self) -> protocol.Step:
        """The step that ended it."""
        assert isinstance(self._step, protocol.Step)
        return self._step

    @property
    def forwards(self) -> list[protocol.Forward]:
        """Forwards of the wrapper."""
        return self._calls.forwards[self._before.forwards : self._until.forwards]

    @property
    def bypasses(self) -> list[protocol.InnerForward]:
        """Forwards of the module in it."""
        return self._calls.bypasses[self._before.bypasses : self._until.bypasses]

    @property
    def backwards(self) -> list[protocol.Backward]:
        """All backwards."""
        return self._counting(self._before.backwards)

    @property
    def last_backwards(self) -> list[protocol.Backward]:
        """Those among them with no step of any optimizer in between: not the ones of a GAN's other network."""
        return self._counting(self.last_from)

    def _counting(self, first: int) -> list[protocol.Backward]:
        found = self._calls.backwards[first : self._until.backwards]
        return [each for each in found if id(each) not in self.repeated] if self.repeated else found


_TELLING = (
    protocol.Forward, protocol.InnerForward, protocol.Backward, protocol.Optimizer, protocol.ZeroGrad, protocol.Step,
)  # fmt: skip


@once
def updates(run: Run, rank: int) -> dict[int, list[Update]]:
    """The steps of a rank by optimizer."""
    found: dict[int, list[Update]] = {}
    pending: dict[int, Update] = {}
    fresh: dict[int, int] = {}
    calls = Calls()
    unused, stepped = 0, False
    for event in run.of(rank, *_TELLING):
        match event:
            case protocol.Forward():
                calls.forwards.append(event)
            case protocol.InnerForward():
                calls.bypasses.append(event)
            case protocol.Backward():
                if stepped:
                    unused, stepped = len(calls.backwards), False
                calls.backwards.append(event)
            case protocol.Optimizer():
                pending[event.optimizer] = Update(event, calls, calls.spans())
                fresh[event.optimizer] = len(calls.backwards)
            case protocol.ZeroGrad() if event.had:
                for each in pending if event.optimizer is None else (event.optimizer,):
                    if each in pending and fresh[each] < len(calls.backwards):
                        pending[each].drop(event, calls.backwards[fresh[each] :])
                        fresh[each] = len(calls.backwards)
            case protocol.Step() if event.optimizer in pending:
                number, stepped, spans = event.optimizer, True, calls.spans()
                pending[number].end(event, unused, spans)
                found.setdefault(number, []).append(_last_evaluation(pending[number]))
                pending[number] = Update(event, calls, spans)
                fresh[number] = len(calls.backwards)
    return found


def _last_evaluation(update: Update) -> Update:
    """Without the evaluations of a closure that the optimizer itself calls, as LBFGS does, but for the last one."""
    step = update.step.site.place
    repeated: set[int] = set()
    kept = []
    for zero, lost in update.dropped:
        if any((frame.path, frame.line) == step for frame in zero.site.frames[1:]):
            repeated.update(id(each) for each in lost)
        else:
            kept.append((zero, lost))
    if repeated:
        update.dropped, update.repeated = kept, repeated
    return update


Digested = Literal["grads", "params"]
"""What of a step there are digests of."""


@once
def parameters(run: Run, rank: int) -> dict[int, protocol.Parameters]:
    """The names and shapes of what each optimizer holds, in the end."""
    found: dict[int, protocol.Parameters] = {}
    for event in run.of(rank, protocol.Parameters):
        held = found.get(event.optimizer)
        found[event.optimizer] = event if held is None else _with(held, event)
    return found


def _with(held: protocol.Parameters, added: protocol.Parameters) -> protocol.Parameters:
    return protocol.Parameters(
        optimizer=held.optimizer, names=[*held.names, *added.names], shapes=[*held.shapes, *added.shapes],
        before=[*held.before, *added.before], frozen=(held.frozen or 0) + (added.frozen or 0),
        talking=[*held.talking, *(len(held.names) + at for at in added.talking)],
        replicas=[*held.replicas, *added.replicas], mesh=held.mesh or added.mesh,
    )  # fmt: skip


def added_at(run: Run, number: int, place: int) -> Site | None:
    """Where a parameter of an optimizer was added, which it did not hold from the first."""
    first = 0
    for event in run.of(run.ranks[0], protocol.Parameters):
        if event.optimizer == number:
            if first <= place < first + len(event.names):
                return event.site
            first += len(event.names)
    return None


def shapes(run: Run, number: int, places: list[int]) -> str:
    """The shapes of the first of these parameters of an optimizer, in words."""
    held = parameters(run, run.ranks[0])[number].shapes
    return ", ".join(str(tuple(held[at])) for at in places[:3])


def differing(run: Run, number: int, count: int, what: Digested, wrapped: bool) -> list[int]:
    """Positions of an optimizer's parameters on which ranks differ at one step.

    count: of the step, from 1. what: "grads" or "params". wrapped: of those under DDP, or of the others. Nothing where
    ranks do not hold the same parameters, as with sharded ones.
    """
    compared = _compared(run, number, what, wrapped).get(count)
    return list(compared) if compared else []


def agree(run: Run, number: int, count: int, what: Digested, wrapped: bool) -> bool:
    """Whether ranks were seen to agree on all that ``differing`` compares; False where there is nothing to compare."""
    return _compared(run, number, what, wrapped).get(count) == ()


def replicas_equal(run: Run, number: int, count: int) -> bool | None:
    """Whether ranks hold the same after a step, under DDP or not; None where there is nothing to compare."""
    compared = [_compared(run, number, "params", wrapped).get(count) for wrapped in (True, False)]
    seen = [apart for apart in compared if apart is not None]
    return not any(seen) if seen else None


def kept_equal(run: Run, number: int) -> bool:
    """Whether all that can be compared was seen to be equal on all ranks after every step of an optimizer."""
    seen = [replicas_equal(run, number, count) for count in range(1, common_steps(run, number) + 1)]
    return True in seen and False not in seen


def other_rates(run: Run, number: int, count: int) -> str:
    """That ranks take a step with learning rates of their own, in words; "" where they do not."""
    rates = [step.rates for step in taken(run, number, count)]
    if all(rate == rates[0] for rate in rates):
        return ""
    shown = ", ".join(f"{rate[0]:g}" for rate in rates if rate)
    return f"the learning rate is another on each rank ({shown})"


@once
def _compared(run: Run, number: int, what: Digested, wrapped: bool) -> dict[int, tuple[int, ...]]:
    """By step, the positions on which ranks differ, of an optimizer's parameters that every rank has told of; without
    the steps at which there is no such parameter."""
    found: dict[int, tuple[int, ...]] = {}
    names = _held_alike(run, number)
    placed = {at for at, ranks in enumerate(parameters(run, run.ranks[0])[number].replicas) if ranks} if names else ()
    places = [at for at, name in enumerate(names) if (name is not None) is wrapped and at not in placed]
    for count in range(1, common_steps(run, number) + 1) if places else ():
        rows = [step.grads if what == "grads" else step.params for step in taken(run, number, count)]
        told = [row for row in rows if row and len(row) == len(rows[0] or ()) <= len(names)]
        if len(told) < len(run.replicas) or len(told) < len(rows):
            continue
        first = told[0]
        by_then = places if len(first) == len(names) else [at for at in places if at < len(first)]
        if all(row == first for row in told):  # most are: these need no look at each place
            if any(first[at] is not None for at in by_then):
                found[count] = ()
            continue
        known = [values for values in ((at, {row[at] for row in told}) for at in by_then) if None not in values[1]]
        if known:
            found[count] = tuple(at for at, values in known if len(values) > 1)
    return found


@once
def _held_alike(run: Run, number: int) -> list[protocol.Name | None]:
    """The names of what an optimizer holds; none where ranks do not hold the same."""
    told = [held for rank in run.replicas if (held := parameters(run, rank).get(number)) is not None]
    if len(told) < max(2, len(run.replicas)) or any(each.shapes != told[0].shapes for each in told):
        return []
    return told[0].names


@once
def averaged_by_hand(run: Run, number: int) -> bool:
    """Whether the script itself reduces tensors shaped as all that an optimizer holds, or one as long as all of it, and
    steps on: what comes after the last step may only compare the ranks."""
    rank = run.ranks[0]
    held = Counter(tuple(shape) for shape in parameters(run, rank)[number].shapes)
    length = sum(prod(shape) * count for shape, count in held.items())
    events = run.of(rank, protocol.Collective, protocol.Step)
    last = max(
        (at for at, event in enumerate(events) if isinstance(event, protocol.Step) and event.optimizer == number),
        default=0,
    )
    calls = [each for each in events[:last] if isinstance(each, protocol.Collective)]
    shapes = Counter(tuple(call.shape) for call in calls if call.op.startswith("all_reduce") and call.shape is not None)
    return held <= shapes or (held.total() > 1 and (length,) in shapes)


def replicas_apart(run: Run, number: int) -> tuple[int, dict[int, tuple[int, ...]]] | None:
    """Parameters that a mesh replicates and that differ between ranks to the end: since which step, 0 for before the
    first, and by place the ranks that are to hold the same."""
    held = {rank: parameters(run, rank)[number] for rank in run.ranks if number in parameters(run, rank)}
    found: tuple[int, dict[int, tuple[int, ...]]] | None = None
    for count in range(min((len(_steps(run, rank).get(number, ())) for rank in held), default=0) + 1):
        rows = {rank: _steps(run, rank)[number][count].params or () if count else held[rank].before for rank in held}
        apart: dict[int, tuple[int, ...]] = {}
        for rank, row in rows.items():
            for at, ranks in enumerate(held[rank].replicas[: len(row)]):
                values = [rows[each][at] for each in ranks if each in rows and at < len(rows[each])]
                if rank == min(ranks, default=-1) and None not in values and len(set(values)) > 1:
                    apart.setdefault(at, tuple(ranks))
        found = None if not apart else found or (count, apart)
    return found


def taken(run: Run, number: int, count: int) -> list[protocol.Step]:
    """One step of an optimizer on each rank that has taken it."""
    by_rank = (_steps(run, rank).get(number, {}) for rank in run.replicas)
    return [steps[count] for steps in by_rank if count in steps]


@once
def _steps(run: Run, rank: int) -> dict[int, dict[int, protocol.Step]]:
    """By optimizer and number of the step."""
    found: dict[int, dict[int, protocol.Step]] = {}
    for event in run.of(rank, protocol.Step):
        found.setdefault(event.optimizer, {})[event.count] = event
    return found


def holds_wrapped(run: Run, rank: int, number: int) -> bool:
    """Whether an optimizer holds parameters that DDP wraps."""
    held = parameters(run, rank).get(number)
    return held is not None and any(name is not None for name in held.names)


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
    """Steps of an optimizer that every rank has taken, up to those within ``Join`` of which some ranks have taken more:
    from there on steps of one number are not the same one."""
    for left in zip(*(_left(run, rank) for rank in run.replicas), strict=False):
        counts: set[int] = {each[number] for each in left}
        if len(counts) > 1:
            return min(counts)
    return min(_counts(run, rank)[number] for rank in run.replicas)


@once
def _left(run: Run, rank: int) -> list[Counter[int]]:
    """How many steps each optimizer has taken whenever a ``Join`` is left."""
    found, counts = list[Counter[int]](), Counter[int]()
    for event in run.of(rank, protocol.Step, protocol.Join):
        if isinstance(event, protocol.Step):
            counts[event.optimizer] += 1
        elif not event.entered:
            found.append(counts.copy())
    return found


@once
def _counts(run: Run, rank: int) -> Counter[int]:
    return Counter(event.optimizer for event in run.of(rank, protocol.Step))
