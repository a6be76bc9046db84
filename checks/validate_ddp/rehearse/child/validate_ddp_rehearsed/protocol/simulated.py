"""Events of a process that stands for one rank of a large world: what it was answered, and what it went on by."""

from __future__ import annotations

from .bounds import Count, GivenCount, Size, Text
from .event import Event, Timed
from .values import CallSite

UNRUN = " of a rank that was not run before"
"""At the end of a call's name: what it gives is not even what this rank gave."""


class Assumed(Timed):
    """The script has decided by a value that a call answered by assumption. op: the call. value: what it decided by,
    as a text."""

    op: Text
    value: Text
    site: CallSite


class Moved(Event):
    """A call that moves data. bytes: of the larger of what the rank gives and gets. group: its name. size: of all its
    members, also those that are not run; nodes: on so many."""

    op: Text
    bytes: Count
    group: Text
    size: Size
    nodes: Size = 1


class Memory(Event):
    """Bytes of the tensors that a rank holds when an optimizer has stepped, each storage once, of shards the local
    part. buckets: of wrappers' reducers, where gradients do not lie in them. activations: the most that autograd has
    kept for a backward of this step besides parameters; None where it was not counted."""

    optimizer: Count
    parameters: Count
    buffers: Count
    gradients: Count
    buckets: Count
    state: Count
    activations: GivenCount = None
