"""Ranks that fail, hang, die, return early or never get ready again, in worlds without pytest."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from validate_ddp.testing import World, WorldError, WorldTimeout  # noqa: E402
from validate_ddp.testing.pool import run_function  # noqa: E402

pytestmark = pytest.mark.runtime


def total(x):
    tensor = torch.tensor([float(x)])
    dist.all_reduce(tensor)
    return tensor.item()


def fail_on(rank, world):
    if world.rank == rank:
        raise ValueError(f"rank {rank} says no")
    dist.barrier()


def test_a_failure_of_one_rank_is_told_with_where_the_others_are(two):
    with pytest.raises(WorldError) as caught:
        two.run(fail_on, 1)
    assert caught.value.failures[1].summary == "raised ValueError: rank 1 says no"
    assert caught.value.failures[0].summary.startswith("waited in barrier at ")
    assert 'raise ValueError(f"rank {rank} says no")' in str(caught.value)
    assert two.run(total, 1) == [2, 2]


def die(how, world):
    if world.rank == 0:
        how(os.getpid(), signal.SIGKILL) if how is os.kill else how(5)
    dist.barrier()


@pytest.mark.parametrize(
    ("how", "said"), [(os.kill, "was killed by SIGKILL"), (os._exit, "ended by itself with exit code 5")]
)
def test_a_dead_rank_is_told_and_the_next_job_has_another_world(two, how, said):
    with pytest.raises(WorldError, match=said):
        two.run(die, how)
    assert two.run(total, 1) == [2, 2]


def wait_for_each_other(world):
    if world.rank == 0:
        dist.barrier()
    else:
        dist.recv(torch.ones(1), src=0)


def test_a_hang_ends_at_the_timeout_and_the_next_job_starts_at_once(pool, two):
    hanging = World(2, pool=pool, timeout=0.7)
    start = time.monotonic()
    with pytest.raises(WorldTimeout, match=r"rank 0 waited in barrier at .*; rank 1 waited in recv at "):
        hanging.run(wait_for_each_other)
    assert time.monotonic() - start < 20  # and not the default of 30 s
    assert two.run(total, 1) == [2, 2]


def backward_alone(world):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    if world.rank == 0:
        model(torch.ones(1, 2)).sum().backward()


def test_a_rank_alone_in_backward_is_found(two):
    with pytest.raises(WorldError, match=r"rank 0 waited in backward at .*; rank 1 had returned"):
        two.run(backward_alone)


def wait_for_work(how, world):
    if world.rank == 0:
        if how == "name":
            work = dist.all_reduce(torch.ones(1), async_op=True)
            work.wait()
        elif how == "line":
            dist.all_reduce(torch.ones(1), async_op=True).wait()
        else:
            [each.wait() for each in [dist.irecv(torch.ones(1), src=1)]]
    raise ValueError("no peer")


@pytest.mark.parametrize("how", ["name", "line", "loop"])
def test_a_rank_alone_in_an_asynchronous_collective_is_found(two, how):
    with pytest.raises(WorldError, match=r"rank 0 waited in wait at .*; rank 1 raised ValueError"):
        two.run(wait_for_work, how)


def send_late(world):
    if world.rank == 0:
        thread = threading.Thread(target=spin_then_send)
        thread.start()
    else:
        dist.recv(torch.ones(1), src=0)


def spin_then_send():
    end = time.monotonic() + 2.7
    while time.monotonic() < end:
        pass
    dist.send(torch.ones(1), 1)


@pytest.mark.slow
def test_a_returned_rank_that_still_works_for_its_peer_is_waited_for(pool):
    World(2, pool=pool, isolation="process").run(send_late)


def speak_then(how, world):
    print(f"rank {world.rank} begins")
    print("and goes on", end="")
    print("half a line", end="", file=sys.stderr)
    if world.rank == 1:
        how(60) if how is time.sleep else how(os.getpid(), signal.SIGKILL)
    dist.barrier()


@pytest.mark.parametrize(("how", "limits"), [(os.kill, [30]), (time.sleep, [1, 4, 16, 64])])
def test_what_a_dead_or_hung_rank_had_printed_is_shown(pool, how, limits, capfd):
    for limit in limits:
        with pytest.raises(WorldError) as caught:
            run_function(pool, speak_then, (how,), {}, 2, "gloo", "group", limit, capture=True)
        shown = capfd.readouterr()
        if caught.value.replies[1].sections:
            break  # a starved machine had not come to the first line within the shorter limits
    assert caught.value.replies[1].sections == (("stdout", "rank 1 begins\nand goes on"), ("stderr", "half a line"))
    assert "[rank 1] rank 1 begins\n[rank 1] and goes on\n" in shown.out
    assert "[rank 0] half a line\n" in shown.err


class Stuck:
    def __del__(self):
        time.sleep(60)


def leave_what_never_ends(world):
    if world.rank == 1:
        stuck = Stuck()
        stuck.itself = stuck  # freed by the collection after the test


@pytest.mark.slow
def test_a_rank_that_never_finishes_its_reset_is_replaced_and_told(pool, two, monkeypatch):
    monkeypatch.setattr(
        "validate_ddp.testing.worlds.READY_LIMIT", 3.0
    )  # the world that comes instead has to start within it
    pool.lost.clear()  # it is other tests' too
    two.run(leave_what_never_ends)
    assert two.run(total, 1) == [2, 2]
    # Rank 0 waits for it in the group that they make for the next job.
    assert pool.lost == ["ranks 0-1 did not reset themselves within 3 s, after leave_what_never_ends"]
    pool.lost.clear()


def kill_parent_of_rank(world):
    if world.rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(20)


def test_a_forkserver_that_dies_costs_one_job(two):
    with pytest.raises((WorldError, RuntimeError)):
        two.run(kill_parent_of_rank)
    assert two.run(total, 1) == [2, 2]


@pytest.mark.slow
def test_a_forkserver_that_is_killed_between_jobs_costs_none_and_is_told(pool, two):
    two.run(total, 1)
    pool.lost.clear()  # it is other tests' too
    pool.server.process.kill()
    pool.server.process.wait()
    assert [two.run(total, 1) for _ in range(4)] == [[2, 2]] * 4
    assert pool.lost == ["the forkserver has died (exit code -9)"]
    pool.lost.clear()


@pytest.mark.slow
def test_a_store_that_is_killed_between_jobs_costs_none_and_is_told(pool, two):
    two.run(total, 1)
    pool.lost.clear()  # it is other tests' too
    server = pool.server.process
    ranks = {pid for world in pool.server.pids.values() for pid in world.values()}
    children = {int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()}
    (store,) = children - ranks
    os.kill(store, signal.SIGKILL)
    server.wait()
    assert [two.run(total, 1) for _ in range(2)] == [[2, 2]] * 2
    assert pool.lost == ["the process with the store of the process groups was killed"]
    pool.lost.clear()


class Wordless(Exception):
    def __str__(self):
        raise LookupError


def raise_without_words():
    raise Wordless


def raise_at_length():
    raise ValueError("x" * 3_000_000)


def test_exceptions_without_words_or_with_too_many_are_told(two):
    with pytest.raises(WorldError, match=r"ranks 0-1 raised Wordless: its text cannot be made \(LookupError\)"):
        two.run(raise_without_words)
    with pytest.raises(WorldError, match="bytes more") as caught:
        two.run(raise_at_length)
    assert len(str(caught.value)) < 200_000


def print_much(lines, world):
    for line in range(lines):
        print(f"line {line} of rank {world.rank}")


def test_of_much_output_the_beginning_and_the_end_are_shown(pool, capfd):
    run_function(pool, print_much, (60_000,), {}, 2, "gloo", "group", 60, capture=True)
    shown = capfd.readouterr().out
    assert len(shown) < 300_000
    for line in ("[rank 1] line 0 of rank 1\n", " bytes more ...\n", "[rank 1] line 59999 of rank 1\n"):
        assert line in shown
