"""Assertions on samplers, plans, files and checkpoints: each passes on the right thing and names what is wrong."""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402
from validate_ddp.testing import (  # noqa: E402
    assert_disjoint_cover,
    assert_only_rank_zero_writes,
    assert_plan_matches,
    assert_reshuffles,
    assert_unwrapped,
)

pytestmark = [pytest.mark.runtime, pytest.mark.world_size(2)]


def fails(match):
    return pytest.raises(AssertionError, match=re.compile(match, re.DOTALL))


@pytest.mark.world_size([1, 2, 3])
def test_a_distributed_sampler_covers(world):
    assert_disjoint_cover(DistributedSampler(range(12)), 12)
    assert_disjoint_cover(DistributedSampler(range(13)), 13, padded=True)
    assert_disjoint_cover(DistributedSampler(range(13), drop_last=True), 13, dropped=True)


def test_padding_counts_unless_it_is_allowed(world):
    with fails("index 0 is seen 2 times, by ranks 0, 1"):
        assert_disjoint_cover(DistributedSampler(range(13), shuffle=False), 13)


def test_every_rank_seeing_everything_is_caught(world):
    with fails(r"index 0 is seen 2 times.*12 of 24 are repetitions, padding explains 1\)"):
        assert_disjoint_cover(range(12), 12, padded=True)


def test_a_missing_index_is_caught(world):
    with fails(r"index 4 is seen by no rank.*\(2 of 6"):
        assert_disjoint_cover([0, 1] if world.rank == 0 else [2, 3], 6)


def test_an_index_outside_is_caught(world):
    with fails("rank 1 has index 6 at position 2"):
        assert_disjoint_cover([0, 1, 2] if world.rank == 0 else [3, 4, 6], 6)


def test_one_rank_repeating_itself_is_caught(world):
    with fails("index 1 is seen 2 times, by rank 1 alone"):
        assert_disjoint_cover([0] if world.rank == 0 else [1, 1], 2)


def test_uneven_ranks_are_caught_where_padding_should_even_them(world):
    with fails(r"different numbers of indices: \[3, 2\]"):
        assert_disjoint_cover([0, 1, 2] if world.rank == 0 else [3, 4], 5, padded=True)


def test_a_shuffling_sampler_reshuffles(world):
    assert_reshuffles(DistributedSampler(range(50)), epochs=4)
    data = list(range(50))
    assert_reshuffles(DataLoader(data, batch_size=5, sampler=DistributedSampler(data)))


class Mutant(DistributedSampler):
    kind = ""

    def set_epoch(self, epoch):
        if self.kind != "ignores":
            super().set_epoch(epoch)

    def __iter__(self):
        if self.kind == "own seed":
            order = list(range(len(self.dataset)))
            random.Random(self.epoch * 10 + self.rank).shuffle(order)
            return iter(order[self.rank :: self.num_replicas])
        if self.kind == "forgets":
            order = list(super().__iter__())
            random.shuffle(order)
            return iter(order)
        return super().__iter__()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ignores", "epoch 1 has the order of epoch 0"),
        ("own seed", r"epoch 0: index \d+ is seen by ranks 0 and 1.*one seed"),
        ("forgets", "epoch 0 asked for again has another order"),
    ],
)
def test_mutant_samplers_are_caught(world, kind, said):
    sampler = Mutant(range(60))
    sampler.kind = kind
    with fails(said):
        assert_reshuffles(sampler)


def test_a_sampler_that_does_not_shuffle_or_cannot_is_caught(world):
    with fails("epoch 1 has the order of epoch 0"):
        assert_reshuffles(DistributedSampler(range(9), shuffle=False))
    with fails("`SequentialSampler` has no `set_epoch`"):
        assert_reshuffles(torch.utils.data.SequentialSampler(range(9)))


@dataclass
class Plan:
    steps: int
    samples: int
    rates: list


def test_a_plan_is_compared_entry_by_entry(world):
    plan = Plan(4, 64, [0.1, 0.05, 0.0])
    assert_plan_matches(plan, {"steps": 4, "samples": 32, "rates": [0.1, 0.05, 0.0], "more": 1}, sums=["samples"])
    with fails(r"'steps': planned 4, executed 3 on rank 1"):
        assert_plan_matches({"steps": 4}, {"steps": 4 - world.rank})
    with fails(r"'samples': planned 64, the ranks executed 128 \(\[64, 64\]\)"):
        assert_plan_matches({"samples": 64}, {"samples": 64}, sums=["samples"])
    with fails(r"'rates' at step 1: planned 0.05, executed 0.04 on rank 0"):
        assert_plan_matches({"rates": plan.rates}, {"rates": [0.1, 0.04, 0.0]})
    with fails(r"'rates': planned 3 steps, executed 2 on rank 0"):
        assert_plan_matches({"rates": plan.rates}, {"rates": [0.1, 0.05]})
    with fails("rank 1 says nothing of 'steps'"):
        assert_plan_matches({"steps": 4}, {"steps": 4} if world.rank == 0 else {})


def test_rank_zero_may_write(world, tmp_path):
    with assert_only_rank_zero_writes(tmp_path):
        os.makedirs(tmp_path / "run", exist_ok=True)
        if world.rank == 0:
            torch.save({"x": 1}, tmp_path / "run" / "a.part")
            os.replace(tmp_path / "run" / "a.part", tmp_path / "run" / "a.pt")
        world.barrier()
        torch.load(tmp_path / "run" / "a.pt")
    (tmp_path / f"rank{world.rank}").write_text("after the context")


@pytest.mark.parametrize("how", ["open", "torch.save", "rename", "remove", "below a link", "pathlib", "legacy"])
def test_a_write_of_another_rank_is_caught(world, tmp_path, how):
    inner = tmp_path / "inner"
    if world.rank == 1:
        inner.mkdir()
        (tmp_path / "old").write_text("")
        (tmp_path / "link").symlink_to(inner)
    world.barrier()
    with fails(r"rank 1 \w+.*only rank 0 may write"), assert_only_rank_zero_writes(tmp_path):
        if world.rank == 0 or how == "open":
            with open(tmp_path / f"a{world.rank}", "w"):
                pass
        elif how == "torch.save":
            torch.save({}, str(inner / "x.pt"))
        elif how == "legacy":
            torch.save({}, str(inner / "x.pt"), _use_new_zipfile_serialization=False)
        elif how == "rename":
            os.rename(tmp_path / "old", tmp_path / "new")
        elif how == "remove":
            os.remove(tmp_path / "old")
        elif how == "pathlib":
            (inner / "t").write_text("")
        else:
            (tmp_path / "link" / "t").write_bytes(b"")


def test_writes_elsewhere_and_reads_do_not_count_and_nothing_is_too_little(world, tmp_path):
    (tmp_path / "a").mkdir(exist_ok=True)
    with assert_only_rank_zero_writes(tmp_path / "a", allow_nothing=True):
        (tmp_path / f"b{world.rank}").write_text("")
        (tmp_path / "aa").write_text("")
    with fails("none of the 2 ranks wrote anything"), assert_only_rank_zero_writes(tmp_path / "a"):
        pass


def test_an_error_within_is_not_hidden(world, tmp_path):
    with pytest.raises(KeyError), assert_only_rank_zero_writes(tmp_path):
        raise KeyError("x")


def test_unwrapped_checkpoints(world, tmp_path):
    net = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.parallel.DistributedDataParallel(net)
    path = tmp_path / f"{world.rank}.pt"
    torch.save({"model": net.state_dict(), "epoch": 1}, path)
    assert_unwrapped(path)
    assert_unwrapped(path, model=net)
    assert_unwrapped(wrapped.module.state_dict())
    with fails(r"key 'module.0.weight' in checkpoint\['model'\] has the prefix 'module.' of Dist.*has '0.weight'"):
        assert_unwrapped({"model": wrapped.state_dict()})
    with fails(
        "key '0._orig_mod.weight' has the prefix '_orig_mod.' of torch.compile; a single process has '0.weight'"
    ):
        assert_unwrapped({"0._orig_mod.weight": torch.ones(1)})
    with fails(r"key '0.bias' of the model is not in the checkpoint \(1 of 2"):
        assert_unwrapped({"model": {"0.weight": torch.ones(2, 2)}}, model=net)


def test_a_child_called_module_is_no_wrapper_if_the_model_has_it(world):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(1, 1)

    assert_unwrapped(Net().state_dict(), model=Net())
    with fails("'module.weight'"):
        assert_unwrapped(Net().state_dict())
