"""Test functions on warm gloo ranks: a pytest plugin, a pool of processes, and assertions for distributed code.

    @pytest.mark.world_size(2)
    def test_gather_is_exact(world):             # runs on every rank
        part = world.scattered(torch.arange(8.0))
        assert_gathers_to(gather(part), torch.arange(8.0))

    with World(2) as w:                          # without pytest
        w.run(function, 1, key="value")          # -> one result a rank

    from validate_ddp.testing.adopt import pytest_runtest_protocol    # in a conftest.py: suites that spawn, see there

    run = rehearse("train.py", nproc=2)          # a whole script, observed; see validate_ddp.rehearse.api
    run.assert_clean()

Processes
    parent          pytest, an xdist worker, or any program; never needs torch.    pool.py, worlds.py, server.py
      forkserver    has imported torch, never ran an operator; forks and reaps.    forkserver.py
        store       one `TCPStore` for all, on loopback: no rank takes it down.    forkserver.py
        ranks       forked in worlds; each leads a process group of its own,       rank.py, group.py, state.py,
                    so that what a test has started ends with it                   held.py, stacks.py

Channels (transport.py: pickled frames over Unix socket pairs, made by the parent, sent to the forkserver by `spawn`)
    parent - forkserver    spawn, kill, close / store (ready), spawned, died
    parent - rank          Job / Reply, then "reset" when all have replied / Idle when that is done
    parent - rank (probe)  "where are you?", answered by a thread of the rank, or by faulthandler if the GIL is held
    capture.py             what a rank prints and logs is in files in memory that the parent has too: death loses none

Life of a test
    1. The pool hands out an idle world of that size. None idle: one more is forked, the first to be ready is taken.
    2. Each rank gets the job: environment, folder and filters of the parent, and the pickled function and arguments.
    3. It has a process group that nobody has used, made ahead over its own prefix of the store; where the guess was
       wrong (other backend, other GLOO_ or TORCH_ variables) it makes one now. It runs the function, and replies.
    4. The parent has its answer. Only then do the ranks collect garbage, destroy the group (20 ms, of sleep), reset
       their state and make the next group; the next test runs in another world meanwhile. A world that failed, or is
       not ready in 20 s, is replaced, never reused.

Each kind of end
    exception       reported with the rank's own traceback; peers that sleep in a collective are not waited for
    early return    the same: a collective that lacks a rank which has finished can never end
    hang            at the time-out: where every rank is, with its stack; the world is killed
    death           signal or exit code, from the forkserver; then as for an exception
    forkserver      the kernel kills its ranks (PR_SET_PDEATHSIG); the test fails, the next one starts another
    parent          the forkserver reads the end of its channel, kills every rank and ends: also after SIGKILL
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from validate_ddp.rehearse.api import Rehearsal, rehearse

    from .assertions import (
        assert_disjoint_cover,
        assert_gathers_to,
        assert_gradient_matches_single_process,
        assert_only_rank_zero_writes,
        assert_plan_matches,
        assert_replicas_equal,
        assert_reshuffles,
        assert_same_collectives,
        assert_unwrapped,
    )
    from .outcome import WorldError, WorldTimeout
    from .pool import Pool, World
    from .rank import RankWorld
    from .rank_fixtures import rank_fixture

_HOMES = {
    "Pool": ".pool", "World": ".pool", "WorldError": ".outcome", "WorldTimeout": ".outcome", "RankWorld": ".rank",
    "rank_fixture": ".rank_fixtures",
    "Rehearsal": "..rehearse.api", "rehearse": "..rehearse.api",
}  # fmt: skip

__all__ = [
    "Pool",
    "RankWorld",
    "Rehearsal",
    "World",
    "WorldError",
    "WorldTimeout",
    "assert_disjoint_cover",
    "assert_gathers_to",
    "assert_gradient_matches_single_process",
    "assert_only_rank_zero_writes",
    "assert_plan_matches",
    "assert_replicas_equal",
    "assert_reshuffles",
    "assert_same_collectives",
    "assert_unwrapped",
    "rank_fixture",
    "rehearse",
]


def __getattr__(name: str) -> object:
    # Lazy: the plugin is imported by every pytest run of an environment that has this package.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, ".assertions"), __name__), name)
