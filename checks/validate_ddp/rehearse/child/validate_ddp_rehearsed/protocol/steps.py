"""Events of what trains the model: optimizers and their steps, schedules, losses, averages, sharding."""

from __future__ import annotations

from .bounds import (
    Count,
    Counts,
    Digests,
    Flag,
    Float,
    Floats,
    GivenCount,
    GivenFlag,
    Norms,
    Number,
    Ranks,
    Seconds,
    Shapes,
    Size,
    Text,
    Texts,
    Value,
)
from .event import Event, Timed
from .values import CallSite, Line, Names


class Optimizer(Event):
    """An optimizer was made. optimizer: its number in the process. inner: whether one of torch.distributed made it."""

    optimizer: Count
    kind: Text
    site: CallSite
    inner: Flag


class Parameters(Event):
    """What an optimizer holds, before its first step; again of those that were added behind them later, before the
    first step on these. names: of those whose gradients DDP reduces. shapes: of all. before: a digest of each. frozen:
    how many require no gradient. talking: places of those in modules whose calls send something to other ranks.
    replicas: for each the ranks that hold the same of it, where a mesh replicates it; digests are of the rank's part
    then. mesh: the ranks over which some are sharded. site: where they were added."""

    SAME_LENGTH = ("names", "shapes", "before")
    optimizer: Count
    names: Names
    before: Digests
    shapes: Shapes
    frozen: GivenCount = None
    talking: Counts = ()
    replicas: Shapes = ()
    mesh: Ranks = ()
    site: CallSite | None = None


class Step(Timed):
    """An optimizer has stepped. count: its number, from 1. grads, params: digests of the gradients before and of the
    parameters after it; None for what is no plain tensor. rates: learning rates of the groups. rewritten: whether
    something else has changed the parameters since the step before. norms: of the gradients, at the first steps; the
    last two only where some parameters are under no wrapper. without: how many parameters have no gradient. reduced:
    places of those whose gradients the script has reduced over all ranks by itself; as_left: whether it has all of
    them, at the first steps, and as the backward has left them. busy: at the first one, seconds of
    CPU that the process has used."""

    optimizer: Count
    count: Count
    site: CallSite
    grads: Digests | None
    params: Digests | None
    rates: Floats | None = None
    rewritten: GivenFlag = None
    norms: Norms | None = None
    without: GivenCount = None
    reduced: Counts = ()
    as_left: Flag = False
    busy: Seconds = 0.0


class ZeroGrad(Event):
    """``zero_grad``. optimizer: None where it was called on a module. had: whether there was a gradient."""

    optimizer: Count | None
    had: Flag
    site: CallSite


class Clip(Event):
    """Gradients are clipped. scaled: whether they are still multiplied by a GradScaler. norm: what it was before."""

    scaled: Flag
    site: CallSite
    norm: Float | None = None


class Grown(Event):
    """A backward has added to gradients that were clipped, before any step. site: where they were clipped."""

    site: CallSite


class Squares(Event):
    """Ranks add up a number that is the sum of the squares of all gradients that this rank's optimizer holds. count:
    how many such sums have come before. norms: of these gradients. weights: norms of their parameters. ranks: that
    add up."""

    count: Count
    norms: Norms
    weights: Norms
    ranks: Ranks
    site: CallSite


class Rescaled(Event):
    """What a reduction has left of a gradient to this rank, its shard, until the next one. count: how many reductions
    have come before it there. times: what it has been multiplied by; 0 where it has become something else. ranks: that
    reduce. site: of the reduction."""

    count: Count
    times: Float
    ranks: Ranks
    site: CallSite


class Unscale(Event):
    """``GradScaler.unscale_``."""

    site: CallSite


class Schedule(Event):
    """A learning-rate schedule was made. schedule: its number in the process. steps: to its end, where it tells one.
    optimizer: whose rates it sets."""

    schedule: Count
    kind: Text
    steps: Number | None
    site: CallSite
    optimizer: GivenCount = None


class Scheduled(Event):
    """It was stepped. metric, site: what it was given, and where, by one that goes by a metric."""

    schedule: Count
    metric: Float | None = None
    site: CallSite | None = None


class Weighed(Event):
    """The gradient of a loss has come to it. count: of how many targets it is. weight: how much each of them counts in
    what the backward was called on; None where they do not count alike. site: of the loss."""

    count: Count
    weight: Float | None
    site: CallSite
    function: Value = ""


class Divided(Event):
    """A schedule of a pipeline has divided the gradients of its stage. by: its number of micro-batches."""

    by: Size


class Average(Event):
    """A moving average was updated. should, still: elements that should have moved, and those of them that did not;
    neither for one in full precision. count: the number of the update, from 1."""

    site: CallSite
    dtype: Text
    should: GivenCount = None
    still: Count = 0
    count: Count = 0
    decay: Number | None = None
    function: Value = ""


class AveragedShards(Event):
    """A moving average of what is sharded over some ranks was updated on this one: the first that is seen of them."""

    site: CallSite
    ranks: Ranks


class Piled(Event):
    """Gradients of a model were sent that hold what is left of earlier steps. places: of their parameters, which no
    optimizer of this rank holds. held: of those that one holds. site: of the first that was sent."""

    model: Count
    places: Counts
    held: Counts
    site: CallSite


class Rounded(Event):
    """An optimizer of torch has stepped on weights in low precision. should, still: of these, elements that have a
    gradient, and those of them that the step left as they were. tensors, stuck: how many were looked at, and of how
    many no such element has moved. rate: the largest of its learning rates. rising: whether a schedule has yet to come
    to the rate that it was made for. count: the number of the step, from 1."""

    optimizer: Count
    count: Count
    dtype: Text
    should: Count
    still: Count
    tensors: Count
    stuck: Count
    rate: Float
    rising: Flag
    site: CallSite


class Sharded(Event):
    """A model was sharded. kind: "fully_shard" or "FullyShardedDataParallel". ranks: its gradients are reduced over."""

    kind: Text
    site: CallSite
    ranks: Ranks = ()


class Parted(Event):
    """Layers of a model were split. ranks: among which. by: by classes of these names."""

    ranks: Ranks
    by: Texts
    site: CallSite


class Model(Event):
    """A module that the script calls, not as part of another; again where it is made of something else. model: a new
    number each time. names, shapes: of parameters, then of buffers. Places among them: trained: what requires
    gradients; wrapped: what DDP reduces; buffers: those of floating point that are saved."""

    SAME_LENGTH = ("names", "shapes")
    model: Count
    kind: Text
    names: Texts
    shapes: Shapes
    trained: Counts
    wrapped: Counts
    buffers: Counts

    @property
    def made_of(self) -> tuple[object, ...]:
        """What is the same of the same model on another rank, and later."""
        shapes = tuple(tuple(each) for each in self.shapes)
        return (self.kind, tuple(self.names), shapes, tuple(self.trained), tuple(self.wrapped), tuple(self.buffers))


class State(Event):
    """What a rank computes with when it calls a model. digests: of what it is made of; None for what optimizers move
    and for what is no plain tensor. training, grad: how it is called. steps: of all optimizers so far; backwards:
    where there are none. site: of the call. overwritten: whether these are buffers that a wrapper is about to make
    those of one rank."""

    model: Count
    digests: Digests
    training: Flag
    grad: Flag
    steps: Count
    backwards: Count
    site: CallSite
    overwritten: Flag = False


class Called(Event):
    """A model was called. reads: places of what its result depends on, among what has changed and is not trained.
    rows: how many its inputs have. talks: whether it sends something to other ranks. inputs: digests of
    what it is called with. site: of the call."""

    model: Count
    training: Flag
    grad: Flag
    reads: Counts
    rows: Counts
    talks: Flag
    inputs: Digests = ()
    site: CallSite | None = None


class Changed(Event):
    """A line of the script has changed something of a model that no optimizer moves. places: of what."""

    model: Count
    places: Counts
    line: Line


class Stale(Event):
    """An optimizer steps on parameters that are no longer the model's. count: how many. held: of how many. kind: what
    took them, as ``Sharded``; "" for a backward. site: where."""

    optimizer: Count
    count: Count
    held: Count
    kind: Text | None
    site: CallSite
