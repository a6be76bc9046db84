"""What exception handlers catch, and whether the program goes on behind them."""

from __future__ import annotations

from typing import Any

Node = list[Any]

_ANY = frozenset({"Exception", "BaseException", "RuntimeError", "DistBackendError", "DistError"})
_EXITS = frozenset({"exit", "_exit", "quit", "abort", "kill"})


def catches_any(caught: Node | None) -> bool:
    """Whether a handler of this type catches the failure of a collective, or another that one rank alone may meet."""
    if caught is None:
        return True
    if caught[0] == "seq":
        return any(catches_any(part) for part in caught[2])
    return (caught[1] if caught[0] == "name" else caught[2] if caught[0] == "attr" else "") in _ANY


def goes_on(body: Node) -> bool:
    """Whether nothing in a handler raises or leaves the program."""
    return not any(_leaves(statement) for statement in body)


def _leaves(node: Any) -> bool:
    if not isinstance(node, list) or not node:
        return False
    if node[0] == "raise":
        return True
    if node[0] == "call" and node[1][0] in ("name", "attr"):
        if (node[1][1] if node[1][0] == "name" else node[1][2]) in _EXITS:
            return True
    return any(_leaves(part) for part in node if isinstance(part, list))


def only_imports(body: Node) -> bool:
    """Whether a ``try`` only looks what is installed: it fails on every rank or on none."""
    return all(statement[0] in ("import", "from") for statement in body)
