"""The gather with gradient and InfoNCE on it through DDP; sums, counts and objects over ranks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from validate_ddp.testing import assert_gathers_to  # noqa: E402

from reference_trainer.core.collectives import (  # noqa: E402
    all_gather_with_grad,
    broadcast_object,
    reduce_sum_count,
    sum_reducer,
)

pytestmark = pytest.mark.runtime

SIZES = {1: [[6]], 2: [[3, 3], [5, 1], [0, 4]], 3: [[2, 2, 2], [5, 20, 11], [0, 3, 1]]}


@pytest.mark.world_size([1, 2, 3])
def test_rows_come_in_the_order_of_ranks_and_of_any_number(world):
    for sizes in SIZES[world.size]:
        whole = torch.arange(sum(sizes) * 6.0).view(-1, 3, 2)
        mine = whole.split(sizes)[world.rank]
        assert_gathers_to(all_gather_with_grad(mine), whole)
        assert_gathers_to(all_gather_with_grad(mine.long()), whole.long())
        strided = whole.transpose(1, 2).split(sizes)[world.rank]
        assert_gathers_to(all_gather_with_grad(strided), whole.transpose(1, 2))


@pytest.mark.world_size([1, 2, 3])
def test_gradient_of_a_row_is_the_sum_of_what_all_ranks_ask_of_it(world):
    for sizes in SIZES[world.size]:
        mine = torch.zeros(sizes[world.rank], 2, dtype=torch.float64, requires_grad=True)
        asked = torch.arange(sum(sizes) * 2.0, dtype=torch.float64).view(-1, 2)
        (all_gather_with_grad(mine) * asked * 10**world.rank).sum().backward()
        factor = sum(10**rank for rank in range(world.size))
        assert torch.equal(mine.grad, asked.split(sizes)[world.rank] * factor)


@pytest.mark.world_size(2)
def test_only_the_group_that_is_named_takes_part(world):
    alone = [dist.new_group([rank]) for rank in range(2)][world.rank]
    x = torch.full((2, 1), float(world.rank))
    assert torch.equal(all_gather_with_grad(x, alone), x)
    assert torch.equal(all_gather_with_grad(x, None), x)
    assert len(all_gather_with_grad(x)) == 4
    assert sum_reducer(None) is None
    assert reduce_sum_count(x.sum(), 2.0, None)[1] == 2


def test_a_process_without_a_group_is_a_world_of_its_own():
    x = torch.ones(2, 3, requires_grad=True)
    assert all_gather_with_grad(x) is x
    assert broadcast_object("x") == "x"
    assert sum_reducer() is None


def projectors():
    torch.manual_seed(5)
    return nn.ModuleList([nn.Linear(5, 4), nn.Linear(5, 4)]).double()


class TwoViews(nn.Module):
    """Both views in one forward, as DDP wants it."""

    def __init__(self):
        super().__init__()
        self.parts = projectors()

    def forward(self, a, b):
        return [F.normalize(part(each), dim=1) for part, each in zip(self.parts, (a, b), strict=True)]


def info_nce(a, b):
    """Both directions, temperature 0.2; row i of a belongs to row i of b."""
    logits = a @ b.T / 0.2
    labels = torch.arange(len(a))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def views(samples):
    generator = torch.Generator().manual_seed(2)
    a = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    return a, a + 0.3 * torch.randn(samples, 5, generator=generator, dtype=torch.float64)


@pytest.mark.world_size([2, 3])
def test_info_nce_is_the_full_loss_on_every_rank_without_a_factor(world):
    for sizes in SIZES[world.size]:
        oracle = TwoViews()
        truth = info_nce(*oracle(*views(sum(sizes))))
        truth.backward()
        net = TwoViews()
        model = DistributedDataParallel(net)
        mine = [each.split(sizes)[world.rank] for each in views(sum(sizes))]
        loss = info_nce(*[all_gather_with_grad(each) for each in model(*mine)])
        loss.backward()
        assert loss.item() == pytest.approx(truth.item(), rel=1e-12)
        for parameter, right in zip(net.parameters(), oracle.parameters(), strict=True):
            assert (parameter.grad - right.grad).abs().max() < 1e-12 * right.grad.abs().max().clamp(min=1e-3)


@pytest.mark.world_size([2, 3])
def test_sums_and_counts_of_uneven_ranks_give_the_mean_over_samples(world):
    values = torch.arange(20.0).split([3, 17] if world.size == 2 else [0, 3, 17])[world.rank]
    total, count = reduce_sum_count(values.sum(), len(values))
    assert (total / count).item() == pytest.approx(9.5)
    big = torch.tensor([2.0**24, 1.0])
    total, count = reduce_sum_count(big + 1, torch.tensor(float(2**24 + 1), dtype=torch.float64))
    assert total.shape == (2,) and count == world.size * (2**24 + 1)
    assert sum_reducer()(values.new_ones(2)).tolist() == [world.size] * 2


@pytest.mark.world_size([2, 3])
def test_the_sum_leaves_what_it_was_given(world):
    x = torch.ones(3, requires_grad=True)
    total = sum_reducer()(x)
    assert total.tolist() == [world.size] * 3 and not total.requires_grad
    assert x.tolist() == [1.0] * 3


@pytest.mark.world_size(3)
def test_objects_come_from_the_rank_that_is_named(world):
    assert broadcast_object({"rank": world.rank}) == {"rank": 0}
    assert broadcast_object(world.rank, src=2) == 2
    pairs = [dist.new_group([0]), dist.new_group([1, 2])]
    group = pairs[min(world.rank, 1)]
    assert broadcast_object(world.rank, group) == min(world.rank, 1)
