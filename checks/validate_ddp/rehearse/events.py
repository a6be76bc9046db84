"""Events as they are kept: a run has hundreds of thousands, so they share what is equal, and know their call sites."""

from __future__ import annotations

from array import array
from functools import cached_property
from sys import intern
from typing import Any, NamedTuple

Event = dict[str, Any]


class Frame(NamedTuple):
    """A line of the script, or of a library that it calls."""

    path: str
    line: int
    function: str
    library: bool


class Site:
    """Where the script called. frames: innermost first. via: the function of torch that it called, where that is not
    the one observed."""

    def __init__(self, frames: tuple[Frame, ...], via: str = "") -> None:
        self.frames = frames
        self.via = via

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Site) and (self.frames, self.via) == (other.frames, other.via)

    def __hash__(self) -> int:
        return hash((self.frames, self.via))

    def __repr__(self) -> str:
        return f"Site(frames={self.frames!r}, via={self.via!r})"

    @cached_property
    def own(self) -> Frame:
        """The innermost line that is no library's."""
        for frame in self.frames:
            if not frame.library:
                return frame
        return self.frames[0] if self.frames else _NOWHERE

    @property
    def place(self) -> tuple[str, int]:
        """Path and line of ``own``."""
        return self.own.path, self.own.line

    @cached_property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """Path and line of every frame that is no library's."""
        return tuple((frame.path, frame.line) for frame in self.frames if not frame.library)


_NOWHERE = Frame("", 0, "", True)
NOWHERE = Site(())
_NO_PROCESS = object()
PLACES = ("site", "backward")
"""Fields that hold the number of a call site."""
_NUMBERS = frozenset(("grads", "params", "indices", "whole"))
"""Fields with a whole number for each parameter or sample."""
_SHAPES = 512
"""Sets of fields that share their names; ranks send some forty."""
_COUNTED = frozenset(("n", "count"))
"""Fields whose values an end shares with its call, and a rank with another."""
_AT_ONCE = 1024
"""Lists and numbers that are looked for again: ranks send equal ones at about the same time."""


class Keeper:
    """Makes events small: about 250 bytes instead of 1,200, and each an ordinary dictionary all the same."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, ...], type | None] = {}
        self._lists: dict[object, Any] = {}
        self._numbers: dict[int, int] = {}
        self._sites: dict[tuple[Any, int], Site] = {}

    def kept(self, event: Event) -> Event:
        """The same event, with its call sites in place of their numbers where those are known."""
        process = event.get("process")
        if event.get("event") == "site":
            self._learn(event)
            process = _NO_PROCESS  # its number stays
        elif type(process) is not int:
            process = _NO_PROCESS
        shape = self._shape(tuple(event))
        if shape is None:
            return {intern(name): self._value(name, value, process) for name, value in event.items()}
        # The dictionaries of a class's objects share their keys (PEP 412).
        holder = shape()
        if len(self._numbers) > _AT_ONCE:
            self._numbers.clear()
        for name, value in event.items():
            kind = type(value)
            if kind is str:
                value = intern(value)
            elif kind is int and name in _COUNTED:
                value = self._numbers.setdefault(value, value)
            elif kind is list or name in PLACES:
                value = self._value(name, value, process)
            setattr(holder, name, value)
        kept: Event = holder.__dict__
        return kept

    def _value(self, name: str, value: Any, process: Any) -> Any:
        if name in PLACES and type(value) is int:
            return self._sites.get((process, value), value)
        if type(value) is not list or not value:
            return value
        key: object
        try:
            if name in _NUMBERS:
                value = _packed(value)
                key = value.tobytes()
            else:
                key = (*value, *map(type, value))  # 1, 1.0 and true are equal, and not the same
            held = self._lists.get(key)
        except (TypeError, OverflowError):  # a list of lists; a parameter without a gradient
            return value
        if held is None:
            if len(self._lists) >= _AT_ONCE:
                self._lists.clear()
            self._lists[key] = held = value
        return held

    def _shape(self, names: tuple[str, ...]) -> type | None:
        if names not in self._shapes:
            if len(self._shapes) >= _SHAPES:
                return None
            plain = all(name.isidentifier() and not name.startswith("_") for name in names)
            self._shapes[names] = type("Shape", (), {}) if plain else None
        return self._shapes[names]

    def _learn(self, event: Event) -> None:
        try:
            self._sites[event.get("process") or 0, event["site"]] = site_of(event)
        except (KeyError, TypeError, ValueError):
            return  # of a damaged log; a replay says so


def _packed(numbers: list[int]) -> array[int]:
    """The same as one block of memory. Raises where they are not whole numbers of 64 bits."""
    try:
        return array("i", numbers)
    except OverflowError:
        return array("q", numbers)


def site_of(event: Event) -> Site:
    """The call site that an event with a stack tells of."""
    return Site(tuple(Frame(*entry) for entry in event["stack"]), event.get("via", ""))
