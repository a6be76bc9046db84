"""All that is declared of libraries, file by file."""

from __future__ import annotations

from functools import cache

from validate_ddp.interpreter.registry import Registry
from validate_ddp.models import (
    autograd,
    builtin,
    command_line,
    data,
    distributed,
    files,
    frameworks,
    methods,
    networks,
    optimizers,
    randomness,
    schedules,
    settings,
    sharded,
    tensors,
    unknown,
)

_FILES = (
    autograd,
    builtin,
    command_line,
    data,
    distributed,
    files,
    frameworks,
    methods,
    networks,
    optimizers,
    randomness,
    schedules,
    settings,
    sharded,
    tensors,
)


@cache
def registry() -> Registry:
    """All that is declared here."""
    return Registry(
        (row for file in _FILES for row in file.DECLARED),
        unresolved=unknown.unresolved,
        unknown=methods.call_unknown,
        forward=networks.forward,
        annotated=unknown.annotated,
    )
