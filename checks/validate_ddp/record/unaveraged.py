"""Ranks of one model that drift apart: whether a script without a wrapper averages gradients, what it leaves out."""

from __future__ import annotations

from bisect import bisect_left
from itertools import combinations
from math import inf, prod
from typing import NamedTuple

from validate_ddp.record.iterations import Turn, loader_of, training_turns, turns
from validate_ddp.record.run import Run, Site, once
from validate_ddp.record.samples import has_own_data, sharings
from validate_ddp.record.updates import common_steps, differing, other_rates, parameters, replicas_equal, taken
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

_FEW = 8
"""Numbers that a metric has at most; more may be a gradient."""
_ROUNDED = 1e-4
"""Relative difference between the norms of a gradient that adding up in another order makes at most."""
_NO_TENSORS = {"barrier", "monitored_barrier", "new_group", "DistributedDataParallel", "wait"}
_POINT_TO_POINT = {"send", "recv", "isend", "irecv", "batch_isend_irecv"}


class Sent(NamedTuple):
    """What ranks send each other while they train.

    model: tensors shaped like parameters, as long as all of them, or sent between a backward and its step; each as its
    place among the rank's events, to the end of the run; none where none is before the optimizer's last step. unknown:
    objects and lists, which may be anything. partly: some of it goes to a part of the ranks, or from hand to hand.
    all_to_all: what a model does that lies on several ranks. rewritten: something other than the optimizer changes the
    parameters between its steps, or they are equal again at a step after they had differed. in_the_end: after the last
    step as much is summed up as the parameters are, which may average them.
    """

    model: tuple[int, ...]
    unknown: bool
    partly: bool
    all_to_all: bool
    rewritten: bool
    in_the_end: bool


class _Call(NamedTuple):
    """A collective with a tensor. at: its place among the rank's events. stepping: after a backward, before a step.
    partly: among a part of the ranks."""

    at: int
    shape: tuple[int, ...]
    stepping: bool
    partly: bool


class _Calls(NamedTuple):
    """What the first rank sends, and when its optimizers step, by places among its events.

    tensors: from the first backward on. unknown, all_to_all, point_to_point: the first place of such a call from then
    on, or that after all events. steps: by optimizer, each as the place of the last backward before it, or -1, and its
    own. summed, totals: the places of calls that sum up, and how many numbers these and all calls before them do.
    """

    tensors: list[_Call]
    unknown: int
    all_to_all: int
    point_to_point: int
    steps: dict[int, list[tuple[int, int]]]
    summed: list[int]
    totals: list[int]


def sent(run: Run, number: int) -> Sent:
    """By the first rank, from its first backward to the last step of an optimizer; what is sent before makes ranks
    start alike, what is sent after may only compare them."""
    calls = _calls(run)
    last = calls.steps[number][-1][1] if number in calls.steps else 0
    held = [tuple(shape) for shape in parameters(run, run.ranks[0])[number].shapes]
    total = sum(map(prod, held))
    model, in_part = _like(run, frozenset(held), total)
    before = bisect_left(calls.summed, last)
    after = (calls.totals[-1] if calls.totals else 0) - (calls.totals[before - 1] if before else 0)
    return Sent(
        model=model if model and model[0] < last else (),
        unknown=calls.unknown < last,
        partly=min(calls.point_to_point, in_part) < last,
        all_to_all=calls.all_to_all < last,
        rewritten=number in _rewritten(run) or _meet_again(run, number),
        in_the_end=after >= total,
    )


@once
def _calls(run: Run) -> _Calls:
    """Looked through once for all optimizers, of which a script may make a new one for each epoch."""
    events = run.by_rank[run.ranks[0]]
    tensors: list[_Call] = []
    unknown = spread = hand_to_hand = len(events)
    steps: dict[int, list[tuple[int, int]]] = {}
    summed: list[int] = []
    totals: list[int] = []
    backward, stepping = -1, False
    for at, event in enumerate(events):
        if isinstance(event, protocol.Backward):
            backward, stepping = at, True
        elif isinstance(event, protocol.Step):
            stepping = False
            steps.setdefault(event.optimizer, []).append((backward, at))
        if not isinstance(event, protocol.Collective):
            continue
        op, shape = event.op, tuple(event.shape) if event.shape is not None else None
        # To compare ranks, one takes the largest, or gathers.
        if shape is not None and op in ("all_reduce", "all_reduce_coalesced") and event.reduce in ("SUM", "AVG"):
            summed.append(at)
            totals.append((totals[-1] if totals else 0) + prod(shape))
        if backward < 0 or op in _NO_TENSORS:
            continue
        if op.startswith("all_to_all"):
            spread = min(spread, at)
        if op in _POINT_TO_POINT:
            hand_to_hand = min(hand_to_hand, at)
        if shape is None:
            unknown = min(unknown, at)
        else:
            tensors.append(_Call(at, shape, stepping, len(event.ranks) < len(run.ranks)))
    return _Calls(tensors, unknown, spread, hand_to_hand, steps, summed, totals)


@once
def _like(run: Run, shapes: frozenset[tuple[int, ...]], total: int) -> tuple[tuple[int, ...], float]:
    """The places of tensors that may be of a model of such parameters, and the first of those that go to a part of the
    ranks: optimizers that are made anew have the same."""
    found = [
        call
        for call in _calls(run).tensors
        if call.shape in shapes or (size := prod(call.shape)) >= total or (call.stepping and size > _FEW)
    ]
    return tuple(call.at for call in found), next((call.at for call in found if call.partly), inf)


@once
def _rewritten(run: Run) -> set[int]:
    """The optimizers whose parameters something else changes between their steps."""
    return {event.optimizer for _, event in run.each(protocol.Step) if event.rewritten}


def _meet_again(run: Run, number: int) -> bool:
    """Whether ranks hold the same after a step, and did not after an earlier one: an optimizer's own step may average
    parameters now and then."""
    equal = [replicas_equal(run, number, count) for count in range(1, common_steps(run, number) + 1)]
    return False in equal and True in equal[equal.index(False) :]


def each_step_sends(run: Run, number: int, found: Sent) -> bool:
    """Whether something shaped like a gradient is sent before each of an optimizer's steps, from its backward on."""
    steps = _calls(run).steps.get(number, [])
    return bool(steps) and all(
        (first := bisect_left(found.model, backward)) < len(found.model) and found.model[first] < at
        for backward, at in steps
    )


def started_equal(run: Run, number: int, places: list[int]) -> bool:
    """Whether ranks held the same before their first step."""
    before = [parameters(run, rank)[number].before for rank in run.ranks]
    return all(each[at] == before[0][at] for each in before for at in places)


def trained(run: Run, number: int, count: int, places: list[int]) -> list[int]:
    """Those of these parameters for which every rank has a gradient at a step: others are one rank's, or frozen."""
    steps = taken(run, number, count)
    return [at for at in places if all(step.grads and step.grads[at] is not None for step in steps)]


class Parted(NamedTuple):
    """step: from which on ranks hold different values of some parameters, to the end. averaged: whether their gradients
    were reduced over all ranks at that step."""

    step: int
    places: list[int]
    averaged: bool


def parted(run: Run, number: int) -> Parted | None:
    """Of parameters whose gradients the script reduces over all ranks by itself, or that were the same on all ranks at
    some step, as only that makes them; what was equal at first. None where that is not known, or may be meant."""
    last = common_steps(run, number)
    steps = [taken(run, number, count) for count in range(1, last + 1)]
    joined = {
        at
        for row in steps
        for at, values in enumerate(zip(*(step.grads or () for step in row), strict=False))
        if (values[0] and all(value == values[0] for value in values)) or all(at in step.reduced for step in row)
    }
    lasting = joined.intersection(differing(run, number, last, "params", wrapped=False))
    first = last
    while first > 1 and (still := lasting.intersection(differing(run, number, first - 1, "params", wrapped=False))):
        lasting, first = still, first - 1
    if not lasting or not started_equal(run, number, sorted(lasting)):
        return None
    averaged = all(lasting.issubset(step.reduced) for step in steps[first - 1])
    return Parted(first, sorted(lasting), averaged)


def without(run: Run, number: int, count: int, places: list[int]) -> list[int]:
    """The ranks that have no gradient at a step of some of these parameters, of which others have one."""
    rows = [step.grads or () for step in taken(run, number, count)]
    had = {at for at in places for row in rows if at < len(row) and row[at] is not None}
    return [
        rank
        for rank, row in zip(run.replicas, rows, strict=False)
        if any(at >= len(row) or row[at] is None for at in had)
    ]


def differ_widely(run: Run, number: int, places: list[int]) -> bool | None:
    """Whether gradients differ by more than rounding at the first steps; None where it is not known."""
    known = False
    for count in range(1, common_steps(run, number) + 1):
        norms = [step.norms for step in taken(run, number, count)]
        for at in places if all(norms) else ():
            values = [norm for each in norms if each is not None and (norm := each[at]) is not None]
            known = known or len(values) > 1
            if len(values) > 1 and max(values) - min(values) > _ROUNDED * max(values):
                return True
    return False if known else None


def why_under_wrapper(run: Run, number: int, count: int, apart: list[int]) -> str:
    """Why parameters differ after a step although DDP reduces their gradients, in words."""
    rates = other_rates(run, number, count)
    if rates:
        return rates
    if count == 1 and not started_equal(run, number, apart):
        return "they did before it, although DDP makes them equal when it wraps the model"
    if differing(run, number, count, "grads", wrapped=True):
        names = parameters(run, run.ranks[0])[number].names
        grads = taken(run, number, count)[0].grads or ()
        without = sum(name is not None and grad is None for name, grad in zip(names, grads, strict=False))
        if without:
            return (
                f"their gradients are not reduced, as {without} others under DDP have none at this step, for which it "
                "waits: freeze parameters before the model is wrapped"
            )
        return "their gradients were changed on some ranks after DDP had reduced them"
    return "the gradients are equal, and so are the learning rates; the optimizer's state or the parameters are not"


def shared_out(run: Run) -> tuple[Site, bool] | None:
    """A loader that shows that the ranks have the training data of one model in common, as each reads a share; and
    whether that is sure: by a sampler, or parts of one data set. That no samples are equal is but a sign of it."""
    for sharing in sharings(run):
        shares = {tuple(level[rank].rank for level in sharing.sharding) for rank in sharing.ranks}
        if sharing.sharding and len(shares) == len(sharing.ranks):
            return sharing.site, True
        if sharing.own and has_own_data(run, sharing):
            return None if _validates_on_others(run) else (sharing.site, True)
    first = [next(iter(training_turns(run, rank)), None) for rank in run.ranks]
    rows = [_rows(turn) if turn is not None else set() for turn in first]
    if not all(rows) or any(one & two for one, two in combinations(rows, 2)):
        return None
    loader = loader_of(run, run.ranks[0], first[0].loader) if first[0] is not None else None
    return (loader.site, False) if loader is not None else None


def _validates_on_others(run: Run) -> bool:
    """Whether each rank leaves out what it evaluates on, and others train on that: folds, with a model for each."""
    learned, judged = (
        [
            {index for turn in turns(run, rank) if turn.trains is trains
             for batch in turn.batches for index in batch.event.whole or ()}
            for rank in run.ranks
        ]
        for trains in (True, False)
    )  # fmt: skip
    return all(
        mine and mine.isdisjoint(learned[at]) and any(mine & other for other in learned)
        for at, mine in enumerate(judged)
    )


def _rows(turn: Turn) -> set[tuple[int, ...]]:
    """What was read in an iteration: each sample by the digests of what it is made of."""
    return {row for batch in turn.batches for row in zip(*batch.event.rows or (), strict=False)}
