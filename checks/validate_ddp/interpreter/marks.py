"""What a number carries of what was done to it: added up, cut, put together by a collective."""

from __future__ import annotations

from validate_ddp.interpreter.objects import Flow, Object, Output, part
from validate_ddp.interpreter.values import Value


class Summed(Object):
    """Mark: added up over the batches of a loop."""

    __slots__ = ()


class Reduced(Object):
    """Mark: a collective, or something that may be one, was applied to it."""

    __slots__ = ()


class Trimmed(Object):
    """Mark: cut to a length that was worked out, as to that of the data set."""

    __slots__ = ()


class Rooted(Object):
    """Mark: what ``reduce`` left in a tensor, of which one rank has the result. Its place is that of the call."""

    __slots__ = ()


class Agreed(Object):
    """Mark: what of it a collective put together. of: the outputs that went through it, beside which there are others.

    A loss divided by a count of all ranks has been through no collective itself.
    """

    __slots__ = ()
    of: tuple[Output, ...] = part()


class Apportioned(Flow):
    """Mark: divided by how many elements of its own batch a rank counts. Its place is that of the division."""

    __slots__ = ()


class Tallied(Object):
    """Mark: counted up by a loop over what is in a rank's own batch, under a condition on that. Its place is the
    condition's."""

    __slots__ = ()


class Averaged(Object):
    """Mark: a loss that is called for the mean over a batch."""

    __slots__ = ()


class Ignored(Averaged):
    """Mark: a loss that leaves targets of one class out of its mean. by: which class, where that was said."""

    __slots__ = ()
    by: Value = part()


class Row(Object):
    """Mark: one sample of a batch, or what was computed from it alone."""

    __slots__ = ()
