"""All that is declared of libraries, file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from validate_ddp.interpreter.registry import Registry
from validate_ddp.interpreter.rows import Declaration
from validate_ddp.models import (
    autograd,
    builtin,
    command_line,
    containers,
    data,
    distributed,
    entries,
    files,
    frameworks,
    huggingface,
    hydra,
    launchers,
    lightning,
    lightning_cli,
    lookups,
    losses,
    meshes,
    methods,
    networks,
    optimizers,
    orders,
    partials,
    pipelines,
    preparing,
    randomness,
    registries,
    schedules,
    settings,
    sharded,
    tensors,
    toolboxes,
    unknown,
)

_FILES = (
    autograd,
    builtin,
    command_line,
    containers,
    data,
    distributed,
    entries,
    files,
    frameworks,
    huggingface,
    hydra,
    launchers,
    lightning,
    lightning_cli,
    lookups,
    losses,
    meshes,
    methods,
    networks,
    optimizers,
    orders,
    partials,
    pipelines,
    preparing,
    randomness,
    registries,
    schedules,
    settings,
    sharded,
    tensors,
    toolboxes,
)


def rows() -> Iterator[Declaration]:
    """All that is declared here, in the order of the files."""
    for file in _FILES:
        yield from file.DECLARED


def registry_of(declared: Iterable[Declaration]) -> Registry:
    """A registry of these rows, with what is done where none of them is meant."""
    return Registry(
        declared,
        unresolved=unknown.unresolved,
        unknown=methods.call_unknown,
        forward=networks.forward,
        annotated=unknown.annotated,
    )


@cache
def registry() -> Registry:
    """What the walk asks."""
    return registry_of(rows())
