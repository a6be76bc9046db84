"""Assertions on replicas, gathers, gradients and collectives: each passes on what is right and names what is wrong."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from validate_ddp.testing import (  # noqa: E402
    assert_gathers_to,
    assert_gradient_matches_single_process,
    assert_replicas_equal,
    assert_same_collectives,
)

pytestmark = [pytest.mark.runtime, pytest.mark.world_size(2)]


def model():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def fails(match):
    return pytest.raises(AssertionError, match=re.compile(match, re.DOTALL))


def test_equal_replicas_pass(world):
    assert_replicas_equal(model())
    assert_replicas_equal({"nested": [{"weight": torch.ones(2)}], "step": 3})
    assert_replicas_equal({"nan": torch.tensor([float("nan")]), "empty": torch.empty(0), "flag": torch.tensor(True)})


def test_a_changed_element_is_named_on_every_rank(world):
    net = model()
    with torch.no_grad():
        net[2].weight[0, 1] += world.rank
    with fails(r"'2.weight' on rank 1 at \[0, 1\].*\(1 of 4 elements differ\).*single process"):
        assert_replicas_equal(net)


def test_a_changed_buffer_is_found_and_the_step_named(world):
    net = model()
    net[1].running_mean[2] = float(world.rank)
    with fails(r"after step 7 in '1.running_mean' on rank 1 at \[2\]: 1.0, expected 0.0"):
        assert_replicas_equal(net, step=7)


def test_a_tolerance_is_a_tolerance(world):
    tensor = torch.ones(3) + 1e-6 * world.rank
    assert_replicas_equal({"x": tensor}, atol=1e-5)
    with fails("'x' on rank 1"):
        assert_replicas_equal({"x": tensor})


@pytest.mark.parametrize("what", ["shape", "type", "missing", "extra", "value"])
def test_replicas_of_other_kinds_are_told(world, what):
    odd = world.rank == 1
    state = {"x": torch.ones(3), "step": 1}
    if what == "shape" and odd:
        state["x"] = torch.ones(4)
    if what == "type" and odd:
        state["x"] = torch.ones(3, dtype=torch.float64)
    if what == "missing" and odd:
        del state["x"]
    if what == "extra" and odd:
        state["y"] = 1
    if what == "value" and odd:
        state["step"] = 2
    said = {"missing": "rank 1 has no 'x'", "extra": "rank 1 has 'y', which rank 0", "value": "'step': rank 1"}
    with fails(said.get(what, "'x': rank 1 has")):
        assert_replicas_equal(state)


def test_an_optimizer_that_stepped_on_one_rank_only_is_found(world):
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(1, 2)).sum().backward()
    if world.rank == 0:
        optimizer.step()
    with fails("rank 1 has"):
        assert_replicas_equal(optimizer)


@pytest.mark.world_size(3)
def test_the_odd_rank_of_three_is_named(world):
    with fails("on rank 2 at"):
        assert_replicas_equal({"w": torch.zeros(5) + (world.rank == 2)})


def gather(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def test_gathers(world):
    whole = torch.arange(8.0)
    part = world.scattered(whole)
    assert_gathers_to(gather(part), whole)
    with fails(r"rank \d gathered.*only one rank's part of 2"):
        assert_gathers_to(part, whole)
    with fails("another order"):
        assert_gathers_to(gather(part).flip(0), whole)
    with fails(r"at \[3\]: 9.0, expected 3.0 \(1 of 8"):
        assert_gathers_to(torch.tensor([0.0, 1, 2, 9, 4, 5, 6, 7]), whole)
    with fails("is torch.float64"):
        assert_gathers_to(gather(part).double(), whole)


def linear():
    torch.manual_seed(3)
    return nn.Linear(4, 1).double()


def mean_loss(net, batch):
    return net(batch).pow(2).mean()


def batch():
    return torch.arange(32.0, dtype=torch.float64).reshape(8, 4) / 10


@pytest.mark.world_size([1, 2, 4])
def test_a_mean_over_shares_has_the_gradient_of_one_process(world):
    assert_gradient_matches_single_process(linear, mean_loss, batch(), rtol=1e-12)


def test_a_sum_is_caught_with_its_ratio(world):
    with fails(r"gradient of 'weight' at \[0, 0\]: .*on the whole 0.5 times"):
        assert_gradient_matches_single_process(linear, lambda net, x: net(x).pow(2).sum(), batch())


def test_a_loss_that_needs_the_whole_batch_is_caught(world):
    with fails("gradient of 'weight'"):
        assert_gradient_matches_single_process(linear, lambda net, x: net(x).var(), batch())


def test_a_forward_past_the_wrapper_is_caught(world):
    def bypass(net, x):
        return getattr(net, "module", net)(x).pow(2).mean()

    with fails("gradient of 'weight'"):
        assert_gradient_matches_single_process(linear, bypass, batch())


def test_collectives_of_the_loss_see_a_world_of_one_in_the_oracle(world):
    sizes = []

    def loss(net, x):
        sizes.append(dist.get_world_size())
        return mean_loss(net, x)

    assert_gradient_matches_single_process(linear, loss, batch())
    assert sizes == [1, 2]
    assert dist.get_world_size() == 2


def test_a_batch_that_does_not_divide_is_refused(world):
    with pytest.raises(ValueError, match="7 does not divide by 2"):
        assert_gradient_matches_single_process(linear, mean_loss, batch()[:7])


def test_same_collectives_pass_with_those_of_ddp(world):
    net = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    with assert_same_collectives():
        dist.barrier()
        net(torch.ones(2, 3)).sum().backward()
        dist.all_reduce(torch.ones(2))
        gather(torch.ones(2))
        dist.broadcast_object_list([world.rank], src=0)


def test_another_collective_is_told_with_its_place_and_does_not_hang(world):
    first = r"collective 2 is not the same.*rank 0 called barrier.*test_assertions_state.py:\d+"
    with fails(first + r"; rank 1 called allreduce of \(2,\) float32 at"), assert_same_collectives():
        dist.all_reduce(torch.ones(2))
        if world.rank == 0:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(2))


def test_another_shape_is_told(world):
    with fails(r"collective 1.*\(1,\) float32.*\(2,\) float32"), assert_same_collectives():
        dist.all_reduce(torch.ones(world.rank + 1))


def test_one_collective_more_is_told(world):
    with fails(r"collective 1.*rank 0 called barrier.*rank 1 had no more"), assert_same_collectives():
        if world.rank == 0:
            dist.barrier()


def test_a_rank_that_does_something_else_is_told(world):
    import time

    with fails(r"collective 1.*rank 1 called none within 0.2 s"), assert_same_collectives(patience=0.2):
        if world.rank == 0:
            dist.barrier()
        else:
            time.sleep(0.5)
            raise AssertionError("collective 1: rank 1 called none within 0.2 s")
