"""Assertions for distributed code. Each names what differs first, and what a single process would have had.

Those marked "Collective" must be called by every rank of the default process group, and raise on every rank or on none;
outside of a process group they hold for one process. None needs pytest or the pool: any launcher will do.
"""

from __future__ import annotations

from .checkpoints import assert_unwrapped
from .collectives import assert_same_collectives
from .gradients import assert_gradient_matches_single_process
from .plans import assert_plan_matches
from .replicas import assert_gathers_to, assert_replicas_equal
from .sampling import assert_disjoint_cover, assert_reshuffles
from .writes import assert_only_rank_zero_writes

__all__ = [
    "assert_disjoint_cover",
    "assert_gathers_to",
    "assert_gradient_matches_single_process",
    "assert_only_rank_zero_writes",
    "assert_plan_matches",
    "assert_replicas_equal",
    "assert_reshuffles",
    "assert_same_collectives",
    "assert_unwrapped",
]
