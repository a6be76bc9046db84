"""In which world CLUB is: looked up at the first use, said once, and an error if it changes. What it sends there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from reference_trainer.config import ClubConfig  # noqa: E402
from reference_trainer.core.club import ClubError, club_gaussian  # noqa: E402
from reference_trainer.core.collectives import sum_reducer  # noqa: E402
from reference_trainer.estimator import CLUBLoss  # noqa: E402

pytestmark = pytest.mark.runtime

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def accelerator(processes=1, kind="NO", steps=1):
    """What CLUB asks of an Accelerator."""
    return SimpleNamespace(num_processes=processes, distributed_type=kind, gradient_accumulation_steps=steps)


def test_alone_is_said_once(capfd):
    club = CLUBLoss(4, 4)
    assert "CLUB" not in capfd.readouterr().err
    club(X, X)
    club(X, X)
    alone = "CLUB: runs on this process alone (no Accelerator given, torch.distributed not initialised)\n"
    assert capfd.readouterr().err == alone
    CLUBLoss(4, 4, group=None)(X, X)
    assert capfd.readouterr().err == "CLUB: runs on this process alone\n"


@pytest.mark.world_size(2)
def test_the_ranks_of_torch_distributed_are_found_and_said_by_rank_zero(world, capfd):
    club = CLUBLoss(4, 4)
    club(X, X)
    assert club.world.size == 2 and club.world.launcher == "torch.distributed"
    said = "CLUB: runs on 2 ranks, as torch.distributed has it\n"
    assert capfd.readouterr().err == (said if world.rank == 0 else "")


@pytest.mark.world_size(2, backend=None)
def test_a_group_that_is_made_after_the_first_use_is_an_error(world):
    club, alone = CLUBLoss(4, 4), CLUBLoss(4, 4, group=None)
    club(X, X)
    alone(X, X)
    dist.init_process_group("gloo")
    with pytest.raises(
        ClubError, match="initialised after CLUB had begun in this process alone; make the process group"
    ):
        club(X, X)
    alone(X, X)  # as it was told to
    dist.barrier()  # who leaves while another rank still connects breaks its rendezvous
    dist.destroy_process_group()


@pytest.mark.world_size(3)
def test_a_group_that_is_given_is_the_one_that_is_used(world):
    groups = [dist.new_group([0]), dist.new_group([1, 2])]
    group = groups[min(world.rank, 1)]
    torch.manual_seed(world.rank)  # the rank zero that counts is the group's
    club = CLUBLoss(4, 4, group=group)
    torch.manual_seed(min(world.rank, 1))
    oracle = CLUBLoss(4, 4, group=None)
    whole = torch.randn(9, 4, generator=torch.Generator().manual_seed(min(world.rank, 1)))
    mine = whole if world.rank == 0 else whole.split([2, 7])[world.rank - 1]
    for _ in range(2):
        found, expected = club(mine, mine.flip(1)), oracle(whole, whole.flip(1))
        assert found.value.item() == pytest.approx(expected.value.item(), abs=1e-6)
    assert club.world.size == (1 if world.rank == 0 else 2)


@pytest.mark.world_size(2)
def test_an_accelerator_is_asked_before_torch_distributed(world, capfd):
    club = CLUBLoss(4, 4)
    club.set_accelerator(accelerator(2, "MULTI_CPU"))
    club(X, X)
    assert club.world.launcher == "accelerator" and club.world.size == 2
    if world.rank == 0:
        assert capfd.readouterr().err == "CLUB: runs on 2 ranks, as accelerator has it\n"


@pytest.mark.world_size(2)
def test_an_accelerator_of_another_size_than_torch_distributed_is_refused(world):
    club = CLUBLoss(4, 4)
    club.set_accelerator(accelerator(1))
    with pytest.raises(ClubError, match="the Accelerator has 1 processes and torch"):
        club(X, X)


def test_an_accelerator_must_come_in_time_and_run_ddp():
    club = CLUBLoss(4, 4)
    club(X, X)
    with pytest.raises(ClubError, match="set_accelerator came too late: CLUB runs on this process alone"):
        club.set_accelerator(accelerator())
    with pytest.raises(ClubError, match="the Accelerator runs FSDP"):
        CLUBLoss(4, 4).set_accelerator(accelerator(2, "FSDP"))


def test_an_accelerator_that_accumulates_takes_the_mean_of_micro_batches_only():
    with pytest.raises(ClubError, match=r'accumulates 4 micro-batches.*use ClubConfig\(accumulation="micro"\)'):
        CLUBLoss(4, 4).set_accelerator(accelerator(steps=4))
    club = CLUBLoss(4, 4, ClubConfig(accumulation="micro"))
    club.set_accelerator(accelerator(steps=4))
    club(X, X)
    union = CLUBLoss(4, 4)
    union.set_accelerator(accelerator())
    union.begin_step()
    with pytest.raises(ClubError, match="and no Accelerator; without `begin`"):
        union.begin([(X, X)])


class Counted:
    """Numbers sent by `dist.all_reduce` and `dist.all_gather` on this rank."""

    def __init__(self, monkeypatch):
        self.sent = []
        for name in ("all_reduce", "all_gather"):
            real = getattr(dist, name)

            def counting(*args, real=real, name=name, **kwargs):
                self.sent.append((name, (args[0] if name == "all_reduce" else args[1]).numel()))
                return real(*args, **kwargs)

            monkeypatch.setattr(dist, name, counting)


@pytest.mark.world_size(2)
def test_covariance_path_sends_a_few_means_and_the_backward_pass_nothing(world, monkeypatch):
    d = 16
    mu, logvar, y = torch.randn(3, 32, d, requires_grad=True)
    counted = Counted(monkeypatch)
    result = club_gaussian(mu, logvar, y, reduce_sum=sum_reducer(), world_size=2)
    result.loss.backward()
    assert counted.sent == [("all_reduce", d + 1), ("all_reduce", 4 * d), ("all_reduce", 1)]


@pytest.mark.world_size(2)
def test_gather_path_sends_all_features_and_its_backward_pass_again(world, monkeypatch):
    club = CLUBLoss(4, 4, ClubConfig(path="gather"))
    x, y = torch.randn(2, 32, 4, requires_grad=True)
    club.begin_step()
    club.fit(x, y)
    counted = Counted(monkeypatch)
    club.loss(x, y).loss.backward()
    assert [each for each in counted.sent if each[1] > 1] == [("all_gather", 128)] * 2 + [("all_reduce", 256)] * 2
