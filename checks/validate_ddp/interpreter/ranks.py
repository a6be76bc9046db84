"""Sets of ranks, and what comparisons with a rank say about who passes them.

A set is named: ``all``; ``zero``, the main process; ``nonzero``, the others; ``local-zero``, the first process of each
node; ``local-nonzero``; ``some``, any other proper subset; ``none``; ``unclear``, all of them or fewer, as it happens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_OPPOSITE = {
    "all": "none",
    "none": "all",
    "zero": "nonzero",
    "nonzero": "zero",
    "local-zero": "local-nonzero",
    "local-nonzero": "local-zero",
    "some": "some",
    "unclear": "unclear",
}

PARTIAL = frozenset({"zero", "nonzero", "local-zero", "local-nonzero", "some"})
"""The sets that surely leave out a rank."""


def opposite(who: str) -> str:
    return _OPPOSITE[who]


def both(first: str, second: str) -> str:
    """The ranks in both sets."""
    if first == second or second == "all":
        return first
    if first in ("all", "unclear"):
        return second
    if second == "unclear":
        return first
    pair = {first, second}
    if "none" in pair or pair in ({"zero", "nonzero"}, {"local-zero", "local-nonzero"}, {"zero", "local-nonzero"}):
        return "none"
    if "zero" in pair:
        return "zero"  # rank zero is the first process of its node
    return "some"


def all_of(sets: Iterable[str]) -> str:
    """The ranks in each of the sets."""
    who = "all"
    for each in sets:
        who = both(who, each)
    return who


def phrase(who: str) -> str:
    """The set in words, for messages."""
    return {
        "all": "every rank",
        "zero": "rank 0 only",
        "nonzero": "every rank but 0",
        "local-zero": "the first rank of each node",
        "local-nonzero": "every rank but the first of each node",
        "some": "some ranks",
        "none": "no rank",
        "unclear": "possibly not every rank",
    }[who]


BY_NAME = ", going by a name"
"""Said of ranks that are a guess from the name of something unknown."""


def compare(scope: str, operator: str, constant: Any) -> bool | tuple[str, bool] | None:
    """What ``rank OPERATOR constant`` is in a distributed launch.

    A bool where all ranks agree, (who, exact) where they do not, None where nothing is known.
    """
    zero, rest = ("local-zero", "local-nonzero") if scope == "local" else ("zero", "nonzero")
    if operator in ("In", "NotIn"):
        if not isinstance(constant, tuple) or not all(type(item) is int for item in constant):
            return None
        members = {item for item in constant if item >= 0}
        answer: bool | tuple[str, bool] = (zero, True) if members == {0} else ("some", True) if members else False
        return answer if operator == "In" else _negated(answer)
    if operator in ("Is", "IsNot") and constant is None:
        return operator == "IsNot"
    if type(constant) is not int:
        return (operator in ("NotEq", "IsNot")) if constant is None or isinstance(constant, str) else None
    if constant < 0 or (constant == 0 and operator in ("Lt", "GtE")):
        return operator in ("NotEq", "Gt", "GtE", "IsNot")
    if constant == 0 or (constant == 1 and operator in ("Lt", "GtE")):
        return {
            "Eq": (zero, True),
            "Is": (zero, True),
            "LtE": (zero, True),
            "Lt": (zero, True),
            "NotEq": (rest, True),
            "IsNot": (rest, True),
            "Gt": (rest, True),
            "GtE": (rest, True),
        }.get(operator)
    return ("some", True)


def _negated(answer: bool | tuple[str, bool]) -> bool | tuple[str, bool]:
    if isinstance(answer, bool):
        return not answer
    return (opposite(answer[0]), answer[1])


def complementary(first: str, second: str) -> bool:
    """Whether the two sets may together be every rank, so that what both do is done by all."""
    zero, rest = {"zero", "local-zero"}, {"nonzero", "local-nonzero"}
    return (first in zero and second in rest) or (first in rest and second in zero) or first == second == "some"
