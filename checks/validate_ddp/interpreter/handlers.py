"""What exception handlers catch, and whether the program goes on behind them."""

from __future__ import annotations

from validate_ddp.source.syntax import Call, Expression, Import, ImportFrom, List, Raise, Statement, Tuple
from validate_ddp.source.traversal import last_name, walk

_ANY = frozenset("Exception BaseException RuntimeError DistBackendError DistError OutOfMemoryError".split())
_EXITS = frozenset({"exit", "_exit", "quit", "abort", "kill"})


def catches_any(caught: Expression | None) -> bool:
    """Whether a handler of this type catches the failure of a collective, or another that one rank alone may meet."""
    if caught is None:
        return True
    if isinstance(caught, (Tuple, List)):
        return any(catches_any(part) for part in caught.elts)
    return last_name(caught) in _ANY


def goes_on(body: list[Statement]) -> bool:
    """Whether nothing in a handler raises or leaves the program."""
    return not any(
        isinstance(node, Raise) or (isinstance(node, Call) and last_name(node.func) in _EXITS) for node in walk(body)
    )


def only_imports(body: list[Statement]) -> bool:
    """Whether a ``try`` only looks what is installed: it fails on every rank or on none."""
    return all(isinstance(statement, (Import, ImportFrom)) for statement in body)


def catches_file_exists(caught: Expression | None) -> bool:
    """Whether a handler of this type catches that another rank has made a file or a folder first."""
    if caught is None:
        return True
    if isinstance(caught, (Tuple, List)):
        return any(catches_file_exists(part) for part in caught.elts)
    return last_name(caught) in ("FileExistsError", "OSError", "IOError", "EnvironmentError", "Exception")
