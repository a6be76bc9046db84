"""Tests on ranks that make process groups by an address of their own, or make the default one again."""

from __future__ import annotations

import os
import socket
import time

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(30)]


@pytest.fixture
def port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def meet_again_and_again(world, late, **address):
    """late: the rank that destroys its group when the others make the next one already."""
    for _ in range(3):
        dist.init_process_group("gloo", **address)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == world.size
        if world.rank == late:
            time.sleep(0.1)
        dist.destroy_process_group()


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.world_size(2, backend=None)
def test_an_address_of_ones_own_serves_again_and_again(world, port, late):
    address = f"tcp://localhost:{port}"
    meet_again_and_again(world, late, init_method=address, rank=world.rank, world_size=world.size)


@pytest.mark.world_size(2)
def test_the_group_that_is_given_may_be_left_for_one_at_an_address(world, port):
    dist.destroy_process_group()
    address = f"tcp://127.0.0.1:{port}"
    meet_again_and_again(world, 0, init_method=address, rank=world.rank, world_size=world.size)


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.world_size(2, backend=None)
def test_the_address_of_the_environment_serves_every_test(world, turn):
    address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    meet_again_and_again(world, 0, init_method=address, rank=world.rank, world_size=world.size)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.world_size(2, backend=None)
def test_the_default_group_may_be_made_again(world, late):
    meet_again_and_again(world, late)


@pytest.mark.world_size(2, backend=None)
def test_an_address_of_ones_own_may_be_in_the_environment(world, port, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", str(port))
    meet_again_and_again(world, 0)


@pytest.mark.world_size(2, backend=None)
def test_an_address_that_says_too_little_is_refused_as_torch_does(world, port):
    with pytest.raises(ValueError, match="rank"):
        dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", world_size=world.size)


def meet_as_tutorials_do(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    for address in (None, f"tcp://127.0.0.1:{port}"):
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.timeout(120)  # of a machine with other work: what a rank spawns imports torch
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.world_size(1, backend=None)
def test_what_a_rank_starts_may_be_a_world_of_its_own(world, port, method):
    agreed = os.environ.copy()
    mp.start_processes(meet_as_tutorials_do, (port,), nprocs=2, start_method=method)
    assert os.environ == agreed


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.world_size(2)
def test_what_a_rank_starts_knows_its_rank_and_no_store(world, method):
    with mp.get_context(method).Pool(1) as pool:
        names = ["RANK", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE"]
        assert pool.map(os.getenv, names) == [str(world.rank), "127.0.0.1", None]
