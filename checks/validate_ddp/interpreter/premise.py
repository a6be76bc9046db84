"""What the walk takes for granted, and nothing besides: that it looks at a launch on several ranks.

That a flag called `distributed` is set, or that more than one rank is counted, is no guess about such a launch: it is
what makes it one, whatever the flag is called, as the process group starts only then. An error may rest on it, and its
derivation says so. *Which* ranks pass a condition is never a premise: by a name alone it is a guess, and no error.
"""

from __future__ import annotations

from validate_ddp.interpreter import names
from validate_ddp.interpreter.guess import Guess
from validate_ddp.interpreter.values import Opaque, Rank, Symbol, Value, WorldSize, bare

NAMED: tuple[Guess, ...] = (names.DISTRIBUTED_FLAG, names.WORLD_SIZE, names.DEVICES)
"""The names that speak of several ranks, and of no rank in particular."""


def is_taken(value: Value) -> bool:
    """Whether what decides a condition on this is only that there are several ranks, as far as names say so."""
    return any(
        (isinstance(atom, WorldSize) and atom.named)
        or (isinstance(atom, Rank) and atom.text)
        or (isinstance(atom, (Opaque, Symbol)) and _says_several(atom.name))
        for atom in bare(value)
    )


def _says_several(name: str) -> bool:
    return name.rpartition(".")[2].lower().lstrip("_") in names.DISTRIBUTED_FLAG.words
