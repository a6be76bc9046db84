"""What tests on ranks may use: fixtures made there, `request`, drawn arguments, meshes, `TestCase`, other processes."""

from __future__ import annotations

import logging
import os
import unittest
from multiprocessing import get_context

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402
from validate_ddp.testing import World, WorldError, rank_fixture  # noqa: E402

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st  # noqa: E402

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(60)]
two = pytest.mark.world_size(2)


@rank_fixture
def counted(world, monkeypatch):
    monkeypatch.setenv("MADE_ON_RANK", str(world.rank))
    total = torch.ones(1)
    dist.all_reduce(total)
    yield [total.item()]
    dist.barrier()


@rank_fixture(params=[3, 4])
def chosen(request):
    return request.param, os.getpid()


@pytest.fixture
def holding(counted):
    return {"held": counted}


@two
def test_a_rank_fixture_is_made_on_each_rank_and_shared_by_what_asks_for_it(world, counted, holding, monkeypatch):
    assert counted == [world.size] and holding["held"] is counted
    assert os.environ["MADE_ON_RANK"] == str(world.rank)
    monkeypatch.delenv("MADE_ON_RANK")


@two
def test_the_rank_fixture_of_another_test_has_ended(world, chosen):
    assert "MADE_ON_RANK" not in os.environ
    assert chosen[0] in (3, 4) and chosen[1] == os.getpid()


@two
@pytest.mark.usefixtures("counted")
def test_a_rank_fixture_that_is_only_used_is_made_too(world):
    assert os.environ["MADE_ON_RANK"] == str(world.rank)


@two
@pytest.mark.usefixtures("holding")
class TestUsing(unittest.TestCase):
    def test_what_a_used_fixture_asks_for_is_made_for_methods_of_a_case(self):
        assert os.environ["MADE_ON_RANK"] == os.environ["RANK"]


@two
@pytest.mark.parametrize("double", [lambda x: 2 * x, str])
def test_requests_folders_and_lambdas_are_there(request, world, tmp_path_factory, tmp_path, double, pytestconfig):
    assert request.node.name.startswith("test_requests") and request.function.__name__ == request.node.originalname
    assert request.node.get_closest_marker("world_size").args == (2,)
    assert request.getfixturevalue("tmp_path") == tmp_path and request.module.__name__ == __name__
    assert request.config.getoption("tbstyle") == pytestconfig.getoption("--tbstyle", "?")
    with pytest.raises(LookupError, match="'counted' is not among them"):
        request.getfixturevalue("counted")
    mine = [None] * world.size
    dist.all_gather_object(mine, str(tmp_path_factory.mktemp("mine")))
    assert len(set(mine)) == world.size and all(os.path.isdir(each) for each in mine)
    assert double(2) in (4, "2")


@two
def test_subtests_that_hold(subtests):
    for i in range(2):
        with subtests.test(i=i):
            assert i < 2


@two
@hypothesis.settings(max_examples=15, database=None)
@hypothesis.given(drawn=st.lists(st.integers(0, 9), max_size=4))
def test_all_ranks_get_the_same_example(world, drawn):
    hypothesis.assume(sum(drawn) != 5)
    everywhere = [None] * world.size
    dist.all_gather_object(everywhere, drawn)
    assert everywhere == [drawn] * world.size


class TestMethodsToo:
    @two
    @hypothesis.settings(max_examples=3, database=None)
    @hypothesis.given(number=st.integers())
    def test_of_a_class(self, world, number):
        assert isinstance(number, int) and dist.get_world_size() == world.size


class TestCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.of_class = 3

    def setUp(self):
        self.rank = os.environ.get("RANK")

    @two
    def test_its_methods_run_on_ranks(self):
        with self.subTest("group"):
            self.assertEqual(str(dist.get_rank()), self.rank)
        self.assertEqual(self.of_class, 3)


@pytest.mark.world_size(4)
@pytest.mark.parametrize("turn", [1, 2])
def test_a_mesh_and_its_groups_are_those_of_the_test(world, turn):
    mesh = world.mesh((2, 2), ("dp", "tp"))
    total = torch.tensor([float(world.rank)])
    dist.all_reduce(total, group=mesh["tp"].get_group())
    assert total.item() == (1 if world.rank < 2 else 5)
    assert world.device == torch.device("cpu")
    if hasattr(mesh, "_flatten"):  # not in torch 2.4
        flat = torch.ones(1)
        dist.all_reduce(flat, group=mesh[("dp", "tp")]._flatten().get_group())
        assert flat.item() == 4


class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


@pytest.mark.slow
@two
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_loaders_have_workers_of_any_kind(world, method):
    loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=get_context(method))
    assert [int(each) for each in loader] == [0, 1, 2, 3]


@pytest.mark.slow
def test_nccl_without_a_gpu_is_skipped_and_not_failed(worlds):
    if torch.cuda.device_count() >= 2:
        pytest.skip("there are GPUs")
    with pytest.raises(WorldError, match=r"ranks 0-1 skipped: .*(as many GPUs|no NCCL)"):
        worlds.run(logging.debug, "", backend="nccl")
    with World(1, backend="nccl") as world, pytest.raises(WorldError, match=r"as many GPUs|no NCCL"):
        world.run(logging.debug, "")
