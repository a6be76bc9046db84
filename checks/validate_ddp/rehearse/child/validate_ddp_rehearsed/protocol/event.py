"""The base of all events, the look-up of their classes by kind, and what is told of a kind that this version lacks."""

from __future__ import annotations

import re
from typing import ClassVar

from .bounds import Count, Rank, Seconds, Text
from .records import Record, stamped

VERSION = 1
"""Of the events; rises when a rule that reads an older log would misread a newer one."""
KINDS: dict[str, type[Event]] = {}
"""By the name in JSON: that of the class as ``inner_forward``, or its ``KIND``."""


class Event(Record):
    """Something that happened, in a process of the script or in the command.

    process: the number of the connection that it came by, from 0; -1 for what the command tells. rank_of: the rank of
    that process, where it is known; the command adds both. time: of the monotonic clock, which all processes of a
    machine share; the sender adds it. kind_of: how the kind is called in JSON.
    """

    KIND: ClassVar[str] = ""
    kind_of: ClassVar[str] = ""
    process: Count = -1
    rank_of: Rank | None = None
    time: Seconds = stamped(init=False)

    def __init_subclass__(cls) -> None:
        name = re.sub("(?<!^)([A-Z])", r"_\1", cls.__name__).lower()
        cls.kind_of = cls.__dict__.get("KIND", name)
        if cls.kind_of:
            KINDS[cls.kind_of] = cls

    def plain(self) -> dict[str, object]:
        return {"event": self.kind_of, **super().plain()}


class Timed(Event):
    """An event whose moment is read."""

    KIND = ""
    REQUIRED: ClassVar[tuple[str, ...]] = ("time",)


class Unknown(Event):
    """An event of another version: only that the process gave a sign of life. of_kind: how it is called."""

    KIND = ""
    of_kind: Text = ""

    def plain(self) -> dict[str, object]:
        found = super().plain()
        found["event"] = found.pop("of_kind", "")
        return found
