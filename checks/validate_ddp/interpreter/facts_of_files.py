"""The kinds of facts about files: what is written, read and loaded, and the states that go into them."""

from __future__ import annotations

from typing import Literal

from validate_ddp.interpreter import training
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.values import Value


class Save(Fact, untold="role"):
    """A file is written."""

    object: Value = ()
    """What is saved."""
    path: Value = ()
    mode: Value = ()
    """The mode of ``open``."""
    role: Role
    handler: tuple[training.Handler, ...] = ()
    """The handler of ``logging``."""
    writer: tuple[training.Writer, ...] = ()
    """The writer of TensorBoard."""


Role = Literal["checkpoint", "file", "handle", "log", "run", "unresolved"]
"""What is written: the state of training, another file, to an open file, a log, a run in a tracker, or what a library
out of sight does."""


class Read(Fact):
    """A file is read, be it a checkpoint or another."""

    path: Value


class Load(Fact):
    """A checkpoint is loaded."""

    loaded: tuple[training.Loaded, ...]
    path: Value
    map_location: Value


class LoadState(Fact):
    """A state is loaded into a model or an optimizer."""

    target: Value
    state: Value
    assign: Value


class ShardedState(Fact, untold="sure"):
    """A call that gathers, saves or loads shards of all ranks."""

    receiver: Value
    """The model or optimizer; empty where that is not known."""
    sure: bool
    """What it is called on is surely sharded."""
