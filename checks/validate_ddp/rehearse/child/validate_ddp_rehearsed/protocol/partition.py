"""What the partition check has found: of what the gradients of the ranks are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from .bounds import Count, Counts, Flag, Float, Floats, Is, Ranks, Size, Text, each, is_text
from .event import Event
from .records import Record, wrong
from .values import Line

TEXTS = Is("a list of texts", each(is_text))
Texts = Annotated[Sequence[str], TEXTS]


class Reading(Record):
    """Parameters whose gradient is made of the tapes in one way. optimizer: of whose first step, in their order.
    target: "rank"; "union" and "copies" for one process on joined batches; "dup" for ranks that are given one tape.
    kind, factor, coefficients: as of ``readout.Group``. tapes, backwards: of each coefficient. names: of the
    parameters."""

    optimizer: Count
    target: Text
    rank: Count
    kind: Text
    factor: Float
    coefficients: Floats
    tapes: Counts
    backwards: Counts
    residual: Float
    names: Texts


def _reading(row: object) -> bool:
    return type(row) is dict and not wrong(row, Reading)


def _read(row: dict[str, Any]) -> Reading:
    return Reading(**{name: value for name, value in row.items() if name in Reading.fields})


Readings = Annotated[
    Sequence[Reading], Is("a list of readings", each(_reading), lambda rows: [_read(row) for row in rows])
]


class Taped(Event):
    """A rank of the check has come to its first step. digest: equal where ranks have learned from the same. joined:
    whether one process has learned from what all ranks have, joined, of itself."""

    digest: Text
    joined: Flag = False


class Sloped(Event):
    """What the mean of the ranks' losses changes by along a direction, for each step in it, beside what their gradients
    say. names: of the parameters that can go somewhere; stays: how many more cannot."""

    names: Texts
    along: Float
    slope: Float
    stays: Count = 0


class Undivided(Event):
    """Of ranks that hold shards of a model. names: of parameters that each rank holds whole, with a gradient of its
    own, beside others of which all have the same gradient."""

    names: Texts


class Partition(Event):
    """The last process of the check, and the command once it is done. Only the latter counts.

    compared: whether the gradients of the first step could be compared. why: where not, in words. tapes: for each rank
    the first one with the same tape. backwards: of one process before its step. spread: whether it does those of all
    ranks. joined: whether it is given the global batch by the script itself. union, dup: the parameters in which the
    ranks differ from one process on the joined batches, and ranks that are given one tape from one process on it; None
    where that was not tried. apart: in what ranks differ that are given one tape, in words; "" where they do the same,
    None where that was not tried. scaled: whether the script multiplies gradients by something that hangs on the
    data; scale: by what one process multiplies them; rate: the learning rate on the ranks, as a share of that of one
    process.
    times: by which plain numbers one process multiplies its loss at last.
    alike, as_one: parameters that a step of the script's own changes by the same on all ranks, whatever gradients it is
    given; and, where all are given one tape, by as much as in one process.
    norms: by which clipping has gone, as shares of the whole gradient's, of all ranks. repeats: whether one process has
    the same gradient twice. place: the line of the backward, or of the reduction by hand after it. batch_norms: those
    not synchronised. parameters: how many are compared; unnamed: how many more optimizers
    hold. own: parameters and buffers that start apart on the ranks, which are not compared. averages: whether the
    script has made what averages models now and then. exchanges: whether ranks hand each other what has a gradient;
    deals: whether each its own part of it, as tokens for experts, and nobody all of it.
    replicas: how sure it is that the ranks are to be one model after
    each step, as a severity; "" where they are not. off_slope: a parameter whose gradient is not the slope of the mean
    of the ranks' losses, told where no process is a reference; factor: how many times it is; others: how many times the
    gradients of others are, None where all are wrong. on_slope: how many times that slope the gradients are, 0 where
    that is not known, of as many parameters as could be moved; stays: how many could not. parts: parameters that each
    rank of a sharded model holds whole, with a gradient of its own, told where the gradients could not be compared.
    moved: parameters that a step of the script's own moves to another side than in one process, given the same
    gradient; moved_by: how much of the way is another, at most; mover: the class of that optimizer."""

    compared: Flag
    why: Text = ""
    float64: Flag = False
    world_size: Size = 1
    tapes: Ranks = ()
    backwards: Count = 0
    spread: Flag = False
    joined: Flag = False
    readings: Readings = ()
    union: Texts | None = None
    dup: Texts | None = None
    apart: Text | None = None
    scaled: Flag = False
    scale: Float = 1.0
    rate: Float = 1.0
    times: Floats = ()
    alike: Texts = ()
    as_one: Texts = ()
    norms: Floats = ()
    repeats: Flag = True
    place: Line | None = None
    batch_norms: Count = 0
    parameters: Count = 0
    own: Texts = ()
    unnamed: Count = 0
    averages: Flag = False
    exchanges: Flag = True
    deals: Flag = False
    replicas: Text = "error"
    off_slope: Text = ""
    factor: Float = 1.0
    others: Float | None = None
    on_slope: Count = 0
    stays: Count = 0
    parts: Texts = ()
    moved: Texts = ()
    moved_by: Float = 0.0
    mover: Text = ""
