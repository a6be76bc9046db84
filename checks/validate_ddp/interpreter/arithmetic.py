"""What arithmetic on ranks, world sizes and constants gives, and what texts are made of them."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import conditions
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names import OF_ONE_NODE, SOME_RANK
from validate_ddp.interpreter.objects import Nameless
from validate_ddp.interpreter.sameness import is_alike
from validate_ddp.interpreter.values import (
    UNKNOWN,
    Const,
    Opaque,
    Rank,
    RankTest,
    Site,
    Symbol,
    Value,
    WorldSize,
    bare,
    carried_by,
    is_none,
    join,
    merged,
)
from validate_ddp.source.syntax import Attribute, Call, Name, Not


def of_ranks(operator: str, left: Value, right: Value) -> Value | None:
    """rank % devices is the local rank, rank // devices the node, node * devices + local the global rank.

    Divided by anything else, as by the size of a group, it is the rank in a group of whatever kind.
    """
    first = next((atom for atom in bare(left) if isinstance(atom, Rank)), None)
    second = next((atom for atom in bare(right) if isinstance(atom, Rank)), None)
    if operator in ("Mod", "FloorDiv") and first is not None and first.scope == "group":
        return (first.unlike(sure=first.sure),)
    if operator in ("Mod", "FloorDiv") and first is not None and not _may_be_devices(right):
        return (first.unlike("group"),)
    if operator == "Mod" and first is not None:
        return (first.unlike("local", first.sure),)
    if operator == "FloorDiv" and first is not None:
        return (first.unlike("node", first.sure),)
    if operator == "Add" and (first is not None or second is not None):
        scopes = {rank.scope for rank in (first, second) if rank is not None}
        others = right if second is None else left if first is None else ()
        if others and any(isinstance(atom, Const) and atom.value == 0 for atom in bare(others)):
            return tuple(rank for rank in (first, second) if rank is not None)[:1]  # the first node's share
        if scopes & {"local", "spawn", "node"} and (
            scopes == {"global", "local"} or not others or any(isinstance(atom, Opaque) for atom in bare(others))
        ):
            guessed = all(rank is None or rank.named for rank in (first, second))
            return (Rank("global", sure=False, named="rank" if guessed else ""),)
        return (Opaque("", carried_by((*left, *right))),)
    if operator in ("Mult", "Sub", "Div", "Pow") and (first is not None or second is not None):
        return (Opaque("", carried_by((*left, *right))),)
    world = [atom for atom in (*bare(left), *bare(right)) if isinstance(atom, WorldSize)]
    if operator == "Mult" and len(world) == 2:
        return (WorldSize(named=any(atom.named for atom in world), group=all(atom.group for atom in world)),)
    return None


def _may_be_devices(divisor: Value) -> bool:
    """Whether it may be the number of devices, or of ranks, of a node."""
    return any(
        isinstance(atom, Const)
        or (isinstance(atom, WorldSize) and not atom.group)
        or (isinstance(atom, (Opaque, Symbol)) and OF_ONE_NODE.matches(atom.name))
        for atom in bare(divisor)
    )


def of_flags(operator: str, left: Value, right: Value) -> Value | None:
    """`flag & is_main()` and `flag | is_main()`: a question about the rank; None where neither side is one."""
    if operator not in ("BitAnd", "BitOr") or not any(isinstance(atom, RankTest) for atom in bare((*left, *right))):
        return None
    truths = [conditions.truth_of(left), conditions.truth_of(right)]
    return conditions.as_value(conditions.all_of(truths) if operator == "BitAnd" else conditions.any_of(truths))


def negation(machine: Machine, node: Not) -> Value:
    """`not x`: where it is open, what it was computed from is kept, as of `bad = not isfinite(loss)`."""
    truth = conditions.test(machine, node)
    if truth is not None or not isinstance(node.operand, (Name, Attribute, Call)):
        return conditions.as_value(truth)
    operand = machine.evaluate(node.operand)
    name = next((atom.name for atom in bare(operand) if isinstance(atom, Opaque)), "")
    return (Opaque(name, carried_by(operand), is_alike(operand)),)


def first_rank(values: list[Value]) -> Value:
    """What `environ.get("RANK") or get_rank()` is: a rank, and no question about one; empty for other parts."""
    numbers: Value = ()
    for value in values:
        numbers = join(numbers, value)
    kinds = [isinstance(atom, Rank) for atom in bare(numbers)]
    return numbers if any(kinds) and all(map(_is_number, bare(numbers))) else ()


def _is_number(atom: Any) -> bool:
    if isinstance(atom, Opaque):  # `environ.get("FS_LOCAL_RANK") or get_rank()`
        return SOME_RANK.matches(atom.name)
    return isinstance(atom, Rank) or (isinstance(atom, Const) and (atom.value is None or type(atom.value) is int))


def of_constants(operator: str, left: Any, right: Any) -> Value:
    try:
        if operator == "Add" and type(left) is type(right):
            return (Const(left + right),)
        if operator == "Sub":
            return (Const(left - right),)
        if operator == "Mult" and isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return (Const(left * right),)
        if operator == "FloorDiv":
            return (Const(left // right),)
    except (TypeError, ZeroDivisionError, OverflowError):
        return UNKNOWN
    return (Opaque(str(left) if isinstance(left, str) else "", (), True),)


def text(site: Site, parts: list[Value]) -> Value:
    """The text that an f-string makes of its parts."""
    held = tuple(atom for part in parts for atom in part)
    name = "".join(str(atom.value) for atom in held if isinstance(atom, Const))
    nameless = (Nameless(site),) if any(len(part) == 1 and is_none(part[0]) for part in parts) else ()
    if not nameless and all(isinstance(atom, Const) for atom in held):
        return (Const(name),)
    return (Opaque(name, merged(*nameless, *carried_by(held)), is_alike(held)),)
