"""Events as they are kept: a run has hundreds of thousands, so they share what is equal, and know their call sites."""

from __future__ import annotations

from sys import intern

from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.protocol import NOWHERE, Frame, Record, Site

__all__ = ["NOWHERE", "Frame", "Keeper", "Record", "Site"]

_COUNTED = frozenset(("n", "count"))
"""Fields whose values an end shares with its call, and a rank with another."""
_AT_ONCE = 1024
"""Lists and numbers that are looked for again: ranks send equal ones at about the same time."""


_AS_IT_IS, _SHARED, _PACKED, _COUNT, _SITE, _MADE = range(6)
"""How a field is read: a number or a flag; a text or a list; a list of numbers as one block of memory; a count; the
number of a call site; by what its bounds make of it."""
_SMALL = ("a whole number", "a rank", "a number", "a number of ranks", "an exit code", "true or false")


def _how(name: str, bounds: protocol.Is) -> int:
    words = bounds.words.removesuffix(" or null")
    if bounds.made is not None:
        return _MADE
    if words == "a call site":
        return _SITE
    if name in _COUNTED:
        return _COUNT
    return _PACKED if bounds.packed else _AS_IT_IS if words in _SMALL else _SHARED


class _Reading:
    """How the fields of a kind are read, by name. made: what makes a value of its JSON."""

    __slots__ = ("how", "made")

    def __init__(self, kind: type[protocol.Event]) -> None:
        bounds = {name: one for name, (one, _) in protocol.bounds_of(kind).items()}
        self.how = {name: _how(name, one) for name, one in bounds.items()}
        self.made = {name: one.made for name, one in bounds.items() if one.made is not None}


class Keeper:
    """Makes events of JSON objects: small ones, and with the call sites that their processes have told of."""

    def __init__(self) -> None:
        self._readings: dict[type[protocol.Event], _Reading] = {}
        self._lists: dict[object, object] = {}
        self._numbers: dict[int, int] = {}
        self._sites: dict[tuple[int, int], Site] = {}
        self._unknown: dict[int, Site] = {}
        """Sites of which no process has told, without frames."""

    def kept(self, held: dict[str, object], process: int | None = None) -> protocol.Event:
        """The event that an object holds, which a rank has sent or ``protocol.wrong`` has nothing against. process: its
        number, where that is not in the object.

        Raises TypeError, ValueError or LookupError for other objects, or gives what cannot be read.
        """
        name = held.get("event")
        kind = protocol.KINDS.get(name, protocol.Unknown) if isinstance(name, str) else protocol.Unknown
        reading = self._readings.get(kind)
        if reading is None:
            reading = self._readings[kind] = _Reading(kind)
        event = kind.__new__(kind)
        if isinstance(event, protocol.Unknown):
            event.of_kind = str(name)
        if process is None:
            number = held.get("process")
            process = number if isinstance(number, int) else -1
        else:
            event.process = process
        if len(self._numbers) > _AT_ONCE:
            self._numbers.clear()
        how_of = reading.how.get
        for name, value in held.items():
            how = how_of(name)
            if how is None:
                continue
            if how == _AS_IT_IS or value is None:
                pass
            elif how == _SITE:
                if value.__class__ is int:
                    value = self._sites.get((process, value)) or self._unknown.setdefault(value, Site(number=value))
            elif how == _COUNT:
                if value.__class__ is int:
                    value = self._numbers.setdefault(value, value)
            elif how == _MADE:
                value = reading.made[name](value)
            elif value.__class__ is str:
                value = intern(value)
            elif value.__class__ is list:
                value = self._shared(value, how == _PACKED)
            setattr(event, name, value)
        if isinstance(event, protocol.NewSite):
            self._sites[process, event.site] = Site(event.stack, event.via, event.site)
        return event

    def _shared(self, value: list[object], packed: bool) -> object:
        """An equal list from before, if there is one."""
        if not value:
            return value
        key: object
        kept: object = value
        try:
            if packed:
                kept = block = protocol.packed(value)  # type: ignore[arg-type]
                key = block.tobytes()
            else:
                key = (*value, *map(type, value))  # 1, 1.0 and true are equal, and not the same
            found = self._lists.get(key)
        except (TypeError, OverflowError):  # a list of lists; a parameter without a gradient
            return value
        if found is not None:
            return found
        if len(self._lists) >= _AT_ONCE:
            self._lists.clear()
        self._lists[key] = kept
        return kept
