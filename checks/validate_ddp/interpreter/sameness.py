"""What is equal on every rank by construction: constants, options, configuration, counters of epochs and steps."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter.objects import Container, Enumerate, Options, Range
from validate_ddp.interpreter.values import Class, Const, Opaque, Rank, RankTest, Symbol, Value, WorldSize, reaching

_DEEPEST = 4
_SEPARATORS = frozenset({"os.sep", "os.path.sep", "os.linesep"})

COMMAND_LINES = frozenset("argparse tyro fire typer click jsonargparse defopt simple_parsing draccus hydra".split())
"""Libraries that hand a program its options."""
CONFIGURATIONS = frozenset({"Namespace", "DictConfig", "ListConfig", "CfgNode", "ConfigDict"})
"""Classes of libraries whose objects hold a program's options."""
_OWN = frozenset("id hash object open input iter next vars globals locals eval exec".split())
"""Builtins whose result is not made of their arguments alone."""
_PURE = ("os.path.", "posixpath.", "re.", "math.", "pathlib.", "builtins.")
_LOOKS_AT_DISK = frozenset(
    """exists isfile isdir islink lexists getmtime getctime getatime getsize is_file is_dir stat glob rglob
    iterdir""".split()
)
"""What a rank sees there hangs on which of them came first."""


def is_alike(value: Value, depth: int = 0) -> bool:
    """Whether every alternative of a value is surely equal on all ranks; nothing (no argument) is not."""
    return bool(value) and all(_is_alike(atom, depth) for atom in value)


def _is_alike(atom: Any, depth: int) -> bool:
    if isinstance(atom, Opaque):
        return atom.alike
    if isinstance(atom, (Const, WorldSize, Class)):
        return True
    if isinstance(atom, Symbol):
        return atom.name in _SEPARATORS
    if isinstance(atom, Options):
        return True
    if not isinstance(atom, (Container, Range, Enumerate)) or depth > _DEEPEST:
        return False
    return all(not held or is_alike(held, depth + 1) for held in atom.fields.values())


def are_alike(*values: Value) -> bool:
    """Whether all of these are, where nothing counts as equal."""
    return all(not value or is_alike(value) for value in values)


def of_method(name: str, receiver: Any, arguments: Value) -> bool:
    """Whether a method of something unknown returns the same on every rank."""
    return name not in _LOOKS_AT_DISK and is_alike((receiver, *arguments))


def made_of_arguments(name: str) -> bool:
    """Whether a library's function returns the same for the same arguments, on whatever rank."""
    last = name.rpartition(".")[2]
    if not name.startswith(_PURE):
        return name.partition(".")[0] in COMMAND_LINES
    return last not in (_OWN if name.startswith("builtins.") else _LOOKS_AT_DISK)


def differs_by_rank(value: Value) -> bool:
    """Whether a rank went into the value, so that two ranks surely hold different ones."""
    return any(isinstance(part, Rank) for part in reaching(value))


def hangs_on_rank(value: Value) -> bool:
    """Whether a rank, or a question about one, went into the value: some two ranks hold different ones."""
    return any(isinstance(part, (Rank, RankTest)) for part in reaching(value))


def told_apart(value: Any) -> Any:
    """Of what plays a role: a value, a dictionary of values, or something plain."""
    if type(value) is tuple:
        return tuple(_atom_told_apart(atom) for atom in value)
    return tuple(map(told_apart, value.values())) if type(value) is dict else value


def _atom_told_apart(atom: Any) -> Any:
    if isinstance(atom, Opaque):  # a save whose path holds the rank is not the one whose path does not
        return (atom.alike, hangs_on_rank((atom,))) if atom.carries else atom.alike
    return atom.value if hasattr(atom, "value") else id(atom) if hasattr(atom, "site") else type(atom)
