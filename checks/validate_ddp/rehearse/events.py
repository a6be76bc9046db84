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


class _Reading:
    """How the fields of a kind are read. made: by name, what makes a value of its JSON. packed: lists of numbers that
    are kept as one block of memory. sites: fields that hold the number of a call site."""

    __slots__ = ("fields", "made", "packed", "sites")

    def __init__(self, kind: type[protocol.Event]) -> None:
        bounds = {name: one for name, (one, _) in protocol.bounds_of(kind).items()}
        self.fields = frozenset(kind.fields)
        self.made = {name: one.made for name, one in bounds.items() if one.made is not None}
        self.packed = frozenset(name for name, one in bounds.items() if one.packed)
        self.sites = frozenset(name for name, one in bounds.items() if one.words.startswith("a call site"))


class Keeper:
    """Makes events of JSON objects: small ones, and with the call sites that their processes have told of."""

    def __init__(self) -> None:
        self._readings: dict[type[protocol.Event], _Reading] = {}
        self._lists: dict[object, object] = {}
        self._numbers: dict[int, int] = {}
        self._sites: dict[tuple[int, int], Site] = {}
        self._unknown: dict[int, Site] = {}

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
        fields, made, sites = reading.fields, reading.made, reading.sites
        for name, value in held.items():
            if name not in fields:
                continue
            if value.__class__ is str:
                value = intern(value)
            elif value.__class__ is int:
                if name in sites:
                    value = self._site(process, value)
                elif name in _COUNTED:
                    value = self._numbers.setdefault(value, value)
            elif value is None:
                pass
            elif name in made:
                value = made[name](value)
            elif value.__class__ is list:
                value = self._shared(value, name in reading.packed)
            setattr(event, name, value)
        if isinstance(event, protocol.NewSite):
            self._sites[process, event.site] = Site(event.stack, event.via, event.site)
        return event

    def _site(self, process: int, number: int) -> Site:
        """The call site of that number; one without frames where the process has not told of it."""
        found = self._sites.get((process, number))
        if found is None:
            found = self._unknown.setdefault(number, Site(number=number))
        return found

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
