"""Sets of ranks, and what comparisons with a rank say about who passes them.

A set is named: ``all``; ``zero``, the main process; ``nonzero``, the others; ``local-zero``, the first process of each
node; ``local-nonzero``; ``some``, any other proper subset; ``none``; ``unclear``, all of them or fewer, as it happens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

Who = Literal["all", "none", "zero", "nonzero", "local-zero", "local-nonzero", "some", "unclear"]

_OPPOSITE: dict[Who, Who] = {
    "all": "none",
    "none": "all",
    "zero": "nonzero",
    "nonzero": "zero",
    "local-zero": "local-nonzero",
    "local-nonzero": "local-zero",
    "some": "some",
    "unclear": "unclear",
}

PARTIAL: frozenset[Who] = frozenset({"zero", "nonzero", "local-zero", "local-nonzero", "some"})
"""The sets that surely leave out a rank."""


def opposite(who: Who) -> Who:
    return _OPPOSITE[who]


def both(first: Who, second: Who) -> Who:
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


def all_of(sets: Iterable[Who]) -> Who:
    """The ranks in each of the sets."""
    who: Who = "all"
    for each in sets:
        who = both(who, each)
    return who


def phrase(who: Who) -> str:
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


def compare(scope: str, operator: str, constant: Any) -> bool | tuple[Who, bool] | None:
    """What ``rank OPERATOR constant`` is in a distributed launch.

    A bool where all ranks agree, (who, exact) where they do not, None where nothing is known.
    """
    zero: Who = "local-zero" if scope == "local" else "zero"
    rest = opposite(zero)
    if operator in ("In", "NotIn"):
        if not isinstance(constant, tuple) or not all(type(item) is int for item in constant):
            return None
        members = {item for item in constant if item >= 0}
        answer: bool | tuple[Who, bool] = (zero, True) if members == {0} else ("some", True) if members else False
        return answer if operator == "In" else _negated(answer)
    if operator in ("Is", "IsNot") and constant is None:
        return operator == "IsNot"
    if type(constant) is not int:
        return (operator in ("NotEq", "IsNot")) if constant is None or isinstance(constant, str) else None
    if constant < 0 or (constant == 0 and operator in ("Lt", "GtE")):
        return operator in ("NotEq", "Gt", "GtE", "IsNot")
    if constant == 0 or (constant == 1 and operator in ("Lt", "GtE")):
        passing: dict[str, tuple[Who, bool]] = {
            "Eq": (zero, True),
            "Is": (zero, True),
            "LtE": (zero, True),
            "Lt": (zero, True),
            "NotEq": (rest, True),
            "IsNot": (rest, True),
            "Gt": (rest, True),
            "GtE": (rest, True),
        }
        return passing.get(operator)
    return ("some", True)


def _negated(answer: bool | tuple[Who, bool]) -> bool | tuple[Who, bool]:
    if isinstance(answer, bool):
        return not answer
    return (opposite(answer[0]), answer[1])


def complementary(first: Who, second: Who) -> bool:
    """Whether the two sets may together be every rank, so that what both do is done by all."""
    zero, rest = {"zero", "local-zero"}, {"nonzero", "local-nonzero"}
    return (first in zero and second in rest) or (first in rest and second in zero) or first == second == "some"
