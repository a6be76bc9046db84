"""Conditions that hold once in several turns of a loop, as the one around the step of an accumulation does."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter.values import Opaque, bare

Node = list[Any]

ONCE, OTHERS = "%once", "%others"
"""In the last of several turns, or in all but that; also the names of such truth values."""
OPPOSITE = {ONCE: OTHERS, OTHERS: ONCE, "": ""}
_FLIPPED = ("NotEq", "Lt", "LtE", "IsNot", "NotIn")


def turn(machine: Any, node: Node) -> str:
    """When the condition ``node``, of unknown truth, holds: ONCE, OTHERS, or empty where nothing is known."""
    kind = node[0]
    if kind == "cmp":
        if len(node[2]) == 1 and (_cycles(node[1]) or _cycles(node[3][0]) or _counts(node[1]) or _counts(node[3][0])):
            return OTHERS if node[2][0] in _FLIPPED else ONCE
        return ""
    if kind == "bin":
        return OTHERS if _cycles(node) else ""
    if kind == "not":
        return OPPOSITE[turn(machine, node[1])]
    if kind == "bool":
        for part in node[2]:
            found = turn(machine, part)
            if found:
                return found
        return ""
    if kind == "name":
        for atom in bare(machine.evaluate(node)):
            if isinstance(atom, Opaque) and atom.name in OPPOSITE:
                return atom.name
    return ""


def _cycles(node: Node) -> bool:
    """``step % several``: not by one."""
    return node[0] == "bin" and node[1] == "Mod" and node[3] not in (["const", 1], ["const", 1.0])


def _counts(node: Node) -> bool:
    """``accumulate``, ``args.grad_accum_steps - 1``: the number of turns, or how many there have been."""
    if node[0] == "bin":
        return _counts(node[2]) or _counts(node[3])
    name = node[1] if node[0] == "name" else node[2] if node[0] == "attr" else ""
    return isinstance(name, str) and "accum" in name.lower() and "loss" not in name.lower()
