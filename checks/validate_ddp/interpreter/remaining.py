"""What objects hold where ranks have left a function early: ``if rank > 0: self.log = None; return``."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter.fact import Guard
from validate_ddp.interpreter.ranks import PARTIAL, both, opposite
from validate_ddp.interpreter.values import OnRanks, Value, join, on_ranks


def set_by(guards: list[Guard], old: Value, new: Value) -> Value:
    """What a field holds once the ranks that remain have set it anew: the others keep what they had."""
    for guard in reversed(guards):
        if guard.remains and guard.who in PARTIAL:
            who, sure = guard.who, guard.sure
            held = on_ranks(old, opposite(who), sure)
            kept = tuple(atom for atom in held if isinstance(atom, OnRanks) and both(atom.who, who) == "none")
            return join(on_ranks(new, who, sure), kept)
    return new


def of_objects(alternatives: list[Any], staying: list[Any], local: dict[str, Value]) -> list[Any]:
    """Of the alternatives of a condition on the rank by which ranks return, what they set of objects: that outlives the
    function, other than its own names."""
    if len(staying) == len(alternatives) or not any(who in PARTIAL for _, _, who in alternatives):
        return []
    leaving = [row for row in alternatives if row[0].ends == "return"]
    return [
        (outcome, {key: change for key, change in changes.items() if change[0] is not local}, who)
        for outcome, changes, who in leaving
    ]
