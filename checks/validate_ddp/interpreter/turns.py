"""Conditions that hold once in several turns of a loop, as the one around the step of an accumulation does."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter.names_of_training import TURNS
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.values import Const, Opaque, Value, bare, constant
from validate_ddp.source.syntax import Attribute, BinOp, BoolOp, Compare, Constant, Expression, Name, Not
from validate_ddp.source.traversal import last_name

ONCE, OTHERS = "%once", "%others"
"""In the last of several turns, or in all but that; also the names of such truth values."""
REMAINDER = "%remainder"
"""The name of what is left over when a count is divided by several: ``steps, rest = divmod(count, several)``."""
OPPOSITE = {ONCE: OTHERS, OTHERS: ONCE, "": ""}
_FLIPPED = ("NotEq", "Lt", "LtE", "IsNot", "NotIn")


def turn(machine: Any, node: Expression) -> str:
    """When the condition ``node``, of unknown truth, holds: ONCE, OTHERS, or empty where nothing is known."""
    if isinstance(node, Compare):
        sides = [side for side in (node.left, node.comparators[0]) if not _is_by_one(machine, side)]
        if len(node.ops) == 1 and any(_cycles(machine, side) or _counts(side) for side in sides):
            return OTHERS if node.ops[0] in _FLIPPED else ONCE
        return ""
    if isinstance(node, BinOp):
        return OTHERS if _cycles(machine, node) else ""
    if isinstance(node, Not):
        return OPPOSITE[turn(machine, node.operand)]
    if isinstance(node, BoolOp):
        for part in node.values:
            found = turn(machine, part)
            if found:
                return found
        return ""
    if isinstance(node, Name):
        for atom in bare(machine.evaluate(node)):
            if isinstance(atom, Opaque) and atom.name in OPPOSITE:
                return atom.name
        return OTHERS if _cycles(machine, node) else ""
    return ""


def _cycles(machine: Any, node: Expression) -> bool:
    """``step % several``, or a name for it."""
    if isinstance(node, Name):
        return any(isinstance(atom, Opaque) and atom.name == REMAINDER for atom in bare(machine.evaluate(node)))
    return isinstance(node, BinOp) and node.op == "Mod" and not _is_by_one(machine, node)


def _is_by_one(machine: Any, node: Expression) -> bool:
    """``step % 1``, which comes round in every turn."""
    if not isinstance(node, BinOp) or node.op != "Mod" or not isinstance(node.right, (Name, Attribute, Constant)):
        return False
    return bool(constant(machine.evaluate(node.right)) == 1)


def leaves_over(count: Value, several: Value) -> bool:
    """Whether ``count % several`` is what is left over of a count, not of one, and no text that is filled in."""
    if any(isinstance(atom, Const) and not isinstance(atom.value, int) for atom in bare(count)):
        return False
    return is_alike(several) and constant(several) != 1 and all(isinstance(a, (Const, Opaque)) for a in bare(several))


def _counts(node: Expression) -> bool:
    """``accumulate``, ``args.grad_accum_steps - 1``: the number of turns, or how many there have been."""
    if isinstance(node, BinOp):
        return _counts(node.left) or _counts(node.right)
    return TURNS.matches(last_name(node))
