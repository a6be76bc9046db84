"""Each check of the doctor passes on what is right, and fails, on every rank, on a planted defect."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from reference_trainer import checkpoint, doctor  # noqa: E402
from reference_trainer.cli import main  # noqa: E402
from reference_trainer.core.club import club_gaussian  # noqa: E402
from reference_trainer.core.collectives import all_gather_with_grad  # noqa: E402
from reference_trainer.core.data import PlannedBatches, Request  # noqa: E402
from reference_trainer.doctor import Verdict, diagnose  # noqa: E402
from reference_trainer.launch import World  # noqa: E402

pytestmark = pytest.mark.runtime
on_two_ranks = pytest.mark.world_size(2)

CHECKS = ["gathering", "club", "data", "checkpoint"]


def on_every_rank(verdict):
    """The verdict, after a look whether all ranks have the same."""
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, verdict)
    assert everywhere == [verdict] * len(everywhere)
    return verdict


def assert_fails(found, told):
    problems = [None] * dist.get_world_size()
    dist.all_gather_object(problems, found[0])
    assert any(told in each for each in problems), problems


@pytest.mark.world_size([2, 3])
def test_all_is_well_here(world, tmp_path):
    verdicts = diagnose(World.current(), "all", tmp_path, timeout=60)
    assert [each.check for each in verdicts] == CHECKS
    for each in verdicts:
        assert on_every_rank(each).passed is True


@pytest.mark.world_size(1, backend=None)
def test_on_one_process_too(world, tmp_path):
    assert [each.passed for each in diagnose(World(), "all", tmp_path, timeout=60)] == [True] * 4


def without_gradient(x, group):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x.detach())
    return torch.cat(parts)


def own_share_put_back(x, group):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x.detach())
    parts[dist.get_rank()] = x
    return torch.cat(parts)


def backwards(x, group):
    gathered = all_gather_with_grad(x, group)
    return gathered.flip(0)


def nothing(x, group):
    return x


@on_two_ranks
@pytest.mark.parametrize(
    ("gather", "told"),
    [
        (without_gradient, "no gradient"),
        (own_share_put_back, "the gradient differs"),
        (backwards, "what was gathered differs"),
        (nothing, "what was gathered has shape"),
    ],
)
def test_a_wrong_gather_is_found(world, gather, told):
    assert_fails(doctor.check_gathering(World.current(), gather), told)


def local_only(mu, logvar, y, *, reduce_sum, world_size):
    return club_gaussian(mu, logvar, y)


def without_factor(mu, logvar, y, *, reduce_sum, world_size):
    return club_gaussian(mu, logvar, y, reduce_sum=reduce_sum)


def value_of_own_share(mu, logvar, y, *, reduce_sum, world_size):
    result = club_gaussian(mu, logvar, y, reduce_sum=reduce_sum, world_size=world_size)
    return result._replace(value=result.loss.detach())


@on_two_ranks
@pytest.mark.parametrize(
    ("club", "told"),
    [
        (local_only, "the value differs"),
        (without_factor, "the gradient of parameters differs"),
        (value_of_own_share, "the value differs"),
    ],
)
def test_a_wrong_club_is_found(world, club, told):
    assert_fails(doctor.check_club(World.current(), club), told)


class SameOnEveryRank(PlannedBatches):
    def __init__(self, plan, rank, **options):
        super().__init__(plan, 0, **options)


class SameInEveryEpoch(PlannedBatches):
    def __iter__(self):
        first = list(super().__iter__())
        per_epoch = self.plan.micro_steps_per_epoch
        return iter([each._replace(index=first[at % per_epoch].index) for at, each in enumerate(first)])


class LosesTheLast(PlannedBatches):
    def __iter__(self):
        return iter([Request(each.epoch, each.step, each.index[:-1]) for each in super().__iter__()])


@on_two_ranks
@pytest.mark.parametrize(
    ("sampler", "told"),
    [
        (SameOnEveryRank, "on no rank"),
        (SameInEveryEpoch, "the same order"),
        (LosesTheLast, "on no rank"),
    ],
)
def test_a_wrong_sampler_is_found(world, sampler, told):
    assert_fails(doctor.check_data(World.current(), sampler), told)


class SeenAgain(PlannedBatches):
    def __iter__(self):
        return iter([Request(each.epoch, each.step, each.index.repeat(2)) for each in super().__iter__()])


@on_two_ranks
def test_samples_that_are_seen_twice_are_found(world):
    assert_fails(doctor.check_data(World.current(), SeenAgain), "on more than one rank, or seen again")


def cut_short(state, path):
    checkpoint.save(state, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def first_version(state, path):
    if not path.exists():
        checkpoint.save(state, path)


def disk_full(state, path):
    raise OSError(28, "No space left on device")


@on_two_ranks
@pytest.mark.parametrize(
    ("save", "told"),
    [
        (cut_short, "is damaged"),
        (first_version, "other weights"),
        (disk_full, "cannot be written: No space left on device"),
    ],
)
def test_a_wrong_save_is_found_and_its_files_are_removed(world, tmp_path, save, told):
    assert_fails(doctor.check_checkpoint(World.current(), tmp_path / "runs", save), told)
    dist.barrier()
    assert list(tmp_path.iterdir()) == []


@on_two_ranks
def test_a_folder_that_ranks_do_not_share_is_found(world, tmp_path):
    assert_fails(doctor.check_checkpoint(World.current(), tmp_path / f"disk{world.rank}"), "another file system")


@on_two_ranks
def test_a_folder_that_cannot_be_written_is_found(world, tmp_path):
    if world.rank == 0:
        (tmp_path / "file").touch()
    assert_fails(doctor.check_checkpoint(World.current(), tmp_path / "file" / "runs"), "cannot be written")


def absent(folder):
    """Rank 1 does not come to the check; what rank 0 says."""
    if World.current().rank == 1:
        time.sleep(3)
        return None
    return diagnose(World.current(), "gathering", Path(folder), timeout=0.5)


@pytest.mark.slow
def test_a_rank_that_does_not_come_breaks_the_check_off(worlds, tmp_path):
    found = worlds.run(absent, str(tmp_path), isolation="process")[0]
    assert found is not None
    (verdict,) = found
    assert (verdict.check, verdict.passed, verdict.broken) == ("gathering", False, True)
    assert "Timed out" in verdict.detail


def command(folder, *words):
    """The command on a rank; its exit code."""
    return main(["doctor", *words, "--folder", folder])


def test_the_exit_code_says_whether_a_check_failed(worlds, tmp_path):
    assert worlds.run(command, str(tmp_path), "gathering", backend=None) == [0, 0]
    (tmp_path / "file").touch()
    assert worlds.run(command, str(tmp_path / "file"), "checkpoint", backend=None) == [1, 1]


def test_a_problem_of_one_rank_is_the_verdict_of_all_and_the_table_names_it(worlds, tmp_path):
    verdicts = [Verdict("gathering", True, "fine"), Verdict("data", False, "rank 1: odd")]
    assert doctor.table(verdicts).splitlines() == ["gathering  passed  fine", "data       FAILED  rank 1: odd"]
    assert worlds.run(one_wrong_rank, str(tmp_path), world_size=2) == ["rank 1: wrong"] * 2


def one_wrong_rank(folder):
    with mock.patch.object(doctor, "check_gathering", lambda world: ("wrong" * world.rank, "fine")):
        (verdict,) = diagnose(World.current(), "gathering", Path(folder), timeout=60)
    assert verdict.passed is False
    return verdict.detail
