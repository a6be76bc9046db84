"""How much each target of a step weighs in its gradient: alike, or by what its micro-batch or its rank has of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from validate_ddp.record.iterations import training_turns
from validate_ddp.record.run import Run, Site
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

ALIKE, OWN, MOMENT, RANK, GROUP, UNCLEAR = "alike", "own", "moment", "rank", "group", "unclear"
"""What divides: one number for all targets of the step; that of the targets of each loss, of each micro-batch on all
ranks, of each rank, or of each of several groups of ranks; or something else, as weights of tasks or samples."""
_ROUNDED = 1e-2
"""Relative difference within which weights, and what they add up to, are one."""


class Cell(NamedTuple):
    """A loss in one backward of one rank. targets: how many. weight: of each; None where they do not weigh alike."""

    targets: int
    weight: float | None


class Weights(NamedTuple):
    """A loss in one step. rows: by rank, its backwards. ends: whether an epoch ends here, whose last batch is shorter.
    alone: whether it is the only loss of the step. as_left: whether all ranks' gradients went into a reduction by hand
    as the backward has left them."""

    site: Site
    rows: list[list[Cell]]
    ends: bool
    alone: bool
    as_left: bool = False

    @property
    def several(self) -> bool:
        """Whether it accumulates."""
        return any(len(row) > 1 for row in self.rows)


def divided(rows: Sequence[Sequence[Cell]], parted: Sequence[Sequence[Sequence[int]]] = ()) -> str:
    """By what the targets of a step are divided. What is divided by a number of targets weighs as much in all, however
    many they are. parted: ways in which the rows fall into groups, each a list of the places in every group."""
    held = [[cell for cell in row if cell.targets] for row in rows]
    weights = [cell.weight or math.nan for row in held for cell in row]
    if len(weights) < 2 or not all(map(math.isfinite, weights)):
        return UNCLEAR
    if _same(weights):
        return ALIKE
    together = len({len(row) for row in rows}) == 1 and len(rows) > 1
    moments = [list(moment) for moment in zip(*rows, strict=False)] if together else []
    by_group = [(GROUP, [[cell for at in group for cell in held[at]] for group in groups]) for groups in parted]
    single = [[cell] for row in held for cell in row]
    for kind, groups in ((OWN, single), (MOMENT, moments), (RANK, held), *by_group):
        shares = [sum(cell.targets * (cell.weight or 0.0) for cell in group) for group in groups]
        alike = all(_same([cell.weight or 0.0 for cell in group if cell.targets]) for group in groups)
        if len(groups) > 1 and alike and _same(shares):
            return kind
    return UNCLEAR


def spread(rows: Sequence[Sequence[Cell]]) -> float:
    """How many times more a target weighs than another."""
    weights = [abs(cell.weight) for row in rows for cell in row if cell.targets and cell.weight]
    return max(weights) / min(weights) if weights else 1.0


def whole(rows: Sequence[Sequence[Cell]]) -> float:
    """What all targets weigh together in the mean over the ranks: 1 for a loss that is their mean."""
    return sum(cell.targets * (cell.weight or 0.0) for row in rows for cell in row) / max(1, len(rows))


def parted(run: Run) -> list[list[list[int]]]:
    """The ways in which the replicas fall into groups that have met: of each the places of its ranks among them."""
    met = {tuple(sorted(event.ranks)) for _, event in run.each(protocol.Collective)}
    small = [group for group in met if 1 < len(group) < len(run.replicas)]
    places = {rank: at for at, rank in enumerate(run.replicas)}
    known = [[places[rank] for rank in group] for group in sorted(small) if places.keys() >= set(group)]
    return list(_covers(known, frozenset(places.values()))) if len(known) <= _GROUPS else []


_GROUPS = 32
"""More are those of no mesh that a rehearsal has ranks for."""


def _covers(groups: list[list[int]], left: frozenset[int]) -> Iterator[list[list[int]]]:
    if not left:
        yield []
        return
    for group in groups:
        if min(left) in group and left.issuperset(group):
            yield from ([group, *others] for others in _covers(groups, left.difference(group)))


def of_steps(run: Run) -> Iterator[Weights]:
    """Of each step that all ranks of one model have taken, each loss; one that only some ranks have, by those."""
    for steps in zip(*(_of_rank(run, rank) for rank in run.replicas), strict=False):
        run.look()
        sites = {lines: site for step in reversed(steps) for lines, (site, _) in step.losses.items()}
        for lines, site in sites.items():
            rows = [step.losses[lines][1] for step in steps if lines in step.losses]
            held = [[each[at] for at in sorted(each)] for each in rows]
            as_left = all(step.as_left for step in steps)
            yield Weights(site, held, any(step.ends for step in steps), len(sites) == 1, as_left)


def twice_divided(run: Run) -> Iterator[tuple[int, Site, int]]:
    """The steps of ranks at the end of a pipeline: rank, where the loss is, and by how many micro-batches the schedule
    divides although all targets of the step weigh one together before it; 0 where they do not."""
    for rank in run.ranks:
        for step in _of_rank(run, rank) if any(run.of(rank, protocol.Divided)) else ():
            for site, cells in step.losses.values() if step.by > 1 and len(step.losses) == 1 else ():
                together = whole([list(cells.values())])
                yield rank, site, step.by if step.by == len(cells) and abs(together - 1) < 1e-3 else 0


class _Step:
    """losses: by the lines that lead to it, where it is and its cell by the number of the backward. by: what the
    gradients are divided by after all of them."""

    def __init__(self) -> None:
        self.losses: dict[tuple[tuple[str, int], ...], tuple[Site, dict[int, Cell]]] = {}
        self.backwards = 0
        self.by = 1
        self.ends = self.as_left = False

    def add(self, event: protocol.Weighed) -> None:
        cells = self.losses.setdefault(event.site.lines, (event.site, {}))[1]
        held = cells.get(self.backwards)
        if held is None:
            cells[self.backwards] = Cell(event.count, event.weight)
            return
        both = [each for each in (held.weight, event.weight) if each is not None]
        cells[self.backwards] = Cell(held.targets + event.count, both[0] if len(both) == 2 and _same(both) else None)


def _of_rank(run: Run, rank: int) -> list[_Step]:
    """The steps for which it has taken losses. What a zero_grad throws away counts for none."""
    learned = {turn.loader for turn in training_turns(run, rank)}
    found, current = [_Step()], _Step()
    for event in run.of(rank, *_OF_STEPS):
        match event:
            case protocol.Backward():
                current.backwards += 1
            case protocol.Divided():
                current.by *= event.by
            case protocol.Weighed() if current.backwards:
                current.add(event)
            case protocol.ZeroGrad() if event.had:
                current.losses = {}
            case protocol.Iterated() if event.loader in learned:
                current.ends = True
                found[-1].ends = found[-1].ends or not current.backwards
            case protocol.Step() if current.losses:
                current.as_left = event.as_left
                found.append(current)
                current = _Step()
    return found[1:]


_OF_STEPS = (
    protocol.Weighed, protocol.Backward, protocol.Divided, protocol.Step, protocol.ZeroGrad, protocol.Iterated,
)  # fmt: skip


def _same(values: Sequence[float]) -> bool:
    return not values or max(values) - min(values) <= _ROUNDED * max(map(abs, values))
