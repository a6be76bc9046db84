"""Room on Python's own stack for what recurses deeply."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

_IN_PIECES = sys.version_info >= (3, 11)
_SLOTS = 70_000
"""Slots of eight bytes in one frame. Python rounds up to a power of two: a megabyte, nearly half of which stays free
for the frames below, some thousands. Only what is used of it takes memory."""

_Result = TypeVar("_Result")


def roomy(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """``function``, given one large piece of stack for all the calls that it makes.

    From 3.11 on, Python keeps frames in pieces of 16 KB, and each call that crosses from one into the next asks the
    system for memory and gives it back on return: a walk that loops at that depth does so a hundred times for each
    script (https://github.com/python/cpython/issues/142183). Before 3.11, ``function`` itself.
    """
    if not _IN_PIECES:
        return function

    def call(*arguments: object) -> _Result:
        return function(*arguments)

    call.__code__ = call.__code__.replace(co_stacksize=_SLOTS)
    return call
