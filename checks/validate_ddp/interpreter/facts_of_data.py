"""The kinds of facts about where data come from: files, orders, what a library deals out, random numbers."""

from __future__ import annotations

from typing import Literal

from validate_ddp.interpreter import objects, training
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.values import Value


class Preparation(Fact, untold="what"):
    """What training reads, or the folder it writes to, is put on disk."""

    path: Value = ()
    what: Literal["download", "extract", "folder", "removal"]


class Order(Fact, untold="library splits"):
    """Items are put into an order, or into parts, that only a seed makes the same everywhere."""

    items: Value = ()
    generator: Value = ()
    seed: Value = ()
    """Given to the function itself."""
    library: str = ""
    """Whose generator draws; empty for the order of a set."""
    splits: bool = False
    """The result is parts of the items, not all of them."""
    result: tuple[objects.Shuffled, ...] = ()
    """The mark that the result carries."""


class Preparing(Fact):
    """Accelerate or Fabric prepares objects for several ranks; named by its method."""

    launcher: tuple[training.Launcher, ...]
    prepared: Value
    open: bool
    """Not all that is given is in sight."""


class Draw(Fact, untold="transform"):
    """Random numbers are drawn in a loop, or a random transform is made."""

    generator: Value = ()
    sized: Value = ()
    """The batches whose size the numbers take."""
    transform: bool = False
    """A transform is made, which draws when it is called."""
