"""The least time of a step's calls over links of given speeds: the alpha-beta model, without its latencies.

Of a collective of S bytes (of the larger of what a rank gives and gets) on n ranks, some rank has to send or to receive
(n - 1) / n of S, whatever the algorithm, and twice that where all parts are also reduced; rings and trees come near it.
Of its n ranks on m nodes the same holds of nodes, over the links of all n / m members that a node has (Chan and others,
Collective communication, 2007). What goes within nodes and what goes across may overlap, so the slower of both counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

_TWICE = ("all_reduce",)
_WHOLE = ("broadcast", "reduce")
_PAIRS = ("send", "recv")
"""Of which nobody knows between whom."""


class Links(NamedTuple):
    """What each rank can send, and receive at the same time, in GB/s: to ranks of its node, and to others."""

    intra: float
    inter: float


def links_of(given: Mapping[str, float]) -> Links | None:
    """From what was asked for; None where nothing was."""
    return Links(given["intra"], given["inter"]) if given else None


def shares(op: str, ranks: int, nodes: int) -> tuple[float, float]:
    """Of the bytes of a call among so many ranks, evenly on so many nodes: what a rank has at least to move within its
    node, and across nodes."""
    if ranks < 2 or op in _PAIRS:
        return 0.0, 0.0
    members = max(1.0, ranks / nodes)
    if op == "all_to_all":  # each rank has a part for each other one, so nothing is sent once for a whole node
        return (members - 1) / ranks, (ranks - members) / ranks
    if op in _WHOLE:
        return (1.0, 0.0) if nodes == 1 else ((members - 1) / members, 1 / members)
    times = 2 if op in _TWICE else 1
    return times * (members - 1) / members, times * (nodes - 1) / nodes / members


def least_seconds(calls: Iterable[tuple[str, int, int, int]], links: Links) -> float:
    """Of calls of a rank as (op, bytes, ranks, nodes)."""
    within = across = 0.0
    for op, count, ranks, nodes in calls:
        inner, outer = shares(op, ranks, nodes)
        within += inner * count
        across += outer * count
    return max(within / links.intra, across / links.inter) / 1e9
