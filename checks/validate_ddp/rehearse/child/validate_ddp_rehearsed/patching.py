"""Putting functions in place of others: each stub is a function object of its own, with ``__wrapped__``."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

Fault = Callable[[str, BaseException], None]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Original = Callable[..., Any]
"""What is patched, and what it was called with."""


def patch(owner: Any, name: str, make: Callable[[Any], Original]) -> Any:
    """Replaces ``owner.name`` by ``make(original)``; nothing happens where this torch has no such name."""
    original = getattr(owner, name, None)
    if original is None:
        return None
    stub = make(original)
    _dress(stub, original)
    setattr(owner, name, stub)
    return stub


def _dress(stub: Any, original: Any) -> None:
    try:
        functools.update_wrapper(stub, original)
    except (AttributeError, TypeError):  # a class in place of a function, or the other way round
        stub.__wrapped__ = original


def around(
    owner: Any,
    name: str,
    fault: Fault,
    before: Callable[[Args, Kwargs], Any],
    after: Callable[[Any, Any], None] | None = None,
    failed: Callable[[Any, BaseException], None] | None = None,
) -> None:
    """Calls ``before(args, kwargs)``, the original, then ``after(what before gave, result)`` or ``failed``.

    A fault in one of ours is handed to ``fault``; the script sees the original's result or exception alone.
    """

    def make(original: Original) -> Original:
        def observed(*args: Any, **kwargs: Any) -> Any:
            token = guarded(fault, name, before, args, kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                if failed is not None:
                    guarded(fault, name, failed, token, error)
                raise
            if after is not None:
                guarded(fault, name, after, token, result)
            return result

        return observed

    patch(owner, name, make)


def guarded(fault: Fault, name: str, function: Original, *args: Any) -> Any:
    """``function(*args)``; None where it fails, which ``fault`` is told."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - whatever it is, the script must not see it
        fault(name, error)
        return None


def everywhere(replaced: dict[int, Any]) -> None:
    """Puts stubs in the place of originals, by id, in all modules of torch that have imported them by name."""
    for name, module in list(sys.modules.items()):
        if name == "torch" or name.startswith("torch."):
            space = getattr(module, "__dict__", {})
            for key, value in list(space.items()):
                stub = replaced.get(id(value))
                if stub is not None and stub is not value:
                    space[key] = stub


class Numbering:
    """Numbers objects in the order in which they are met, and keeps none of them alive."""

    def __init__(self) -> None:
        self.numbers: dict[int, tuple[Any, int]] = {}
        self.count = 0

    def get(self, thing: Any) -> int | None:
        """The number of an object that was met before."""
        held = self.numbers.get(id(thing))
        return held[1] if held is not None and held[0]() is thing else None

    def of(self, thing: Any) -> int:
        """The object's number, a new one if need be. Raises TypeError for one that cannot be referred to weakly."""
        number = self.get(thing)
        if number is None:
            number, self.count = self.count, self.count + 1
            self.numbers[id(thing)] = (weakref.ref(thing), number)
        return number
