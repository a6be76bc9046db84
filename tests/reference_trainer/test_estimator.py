"""CLUBLoss on ranks: training with it equals one process's, its replicas stay equal, and a drift is found."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from validate_ddp.testing import assert_replicas_equal  # noqa: E402

from reference_trainer.config import ClubConfig  # noqa: E402
from reference_trainer.estimator import CLUBLoss  # noqa: E402

pytestmark = pytest.mark.runtime

SIZES = {2: [5, 19], 3: [0, 15, 9]}
SAMPLES = 24


class Encoders(nn.Module):
    """Two encoders of one input."""

    def __init__(self):
        super().__init__()
        self.x, self.y = nn.Linear(6, 4), nn.Linear(6, 3)

    def forward(self, a):
        return self.x(a).tanh(), self.y(a).tanh()


def batch(step, samples=SAMPLES, dtype=torch.float64):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(samples, 6, generator=generator, dtype=torch.float64).to(dtype)


def vector(parameters):
    return torch.cat([each.detach().flatten() for each in parameters])


def weights_of(net, club):
    """All that training moves, as one vector."""
    return torch.cat([vector(net.parameters()), vector(club.estimator.parameters)])


def trained(config, parts, size=1, steps=3, union=False, group=None, wrap=lambda net: net, dtype=torch.float64):
    """Some steps of SGD on a task and CLUB; ``parts`` are the indices of this rank's micro-batches."""
    torch.manual_seed(11)
    net, club = Encoders().to(dtype), CLUBLoss(4, 3, config, group=group)
    model = wrap(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    values = []
    for step in range(steps):
        micro = [batch(step, dtype=dtype)[part] for part in parts]
        optimizer.zero_grad()
        if union:
            club.begin_step(SAMPLES)
            with torch.no_grad():
                club.begin([model(each) for each in micro])
        for index, each in enumerate(micro):
            if wrap is DistributedDataParallel:
                model.require_backward_grad_sync = index == len(micro) - 1
            x, y = model(each)
            task = x.square().sum() * (size / SAMPLES)
            part = club.weighted_part(x, y) * (size / SAMPLES) if union else club(x, y).loss / len(micro)
            (task + part).backward()
        optimizer.step()
        values.append(club.value.item())
    return net, club, values


CONFIGS = {
    "defaults": ClubConfig(weight=0.7),
    "gathered": ClubConfig(weight=0.7, path="gather"),
    "unit, warmed up, seldom fitted": ClubConfig(weight=0.7, variance="unit", warmup_steps=3, update_every=2),
}


@pytest.mark.world_size([2, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_training_with_uneven_ranks_is_that_of_one_process(world, name):
    whole = torch.arange(SAMPLES)
    expected = trained(CONFIGS[name], [whole])
    mine = whole.split(SIZES[world.size])[world.rank]
    found = trained(CONFIGS[name], [mine], world.size, group=world.group, wrap=DistributedDataParallel)
    assert (weights_of(*found[:2]) - weights_of(*expected[:2])).abs().max() < 1e-12
    assert found[2] == pytest.approx(expected[2], abs=1e-12)
    assert_replicas_equal(found[1].estimator.state_dict())


@pytest.mark.world_size([1, 2, 4])
def test_union_of_micro_batches_trains_as_one_big_batch(world):
    micro_steps = {1: 4, 2: 2, 4: 4}[world.size]
    # 24 samples on 4 ranks in 4 micro-steps: uneven.
    parts = [each.tensor_split(world.size)[world.rank] for each in torch.arange(SAMPLES).tensor_split(micro_steps)]
    config = CONFIGS["defaults"]
    expected = trained(config, [torch.arange(SAMPLES)])
    found = trained(config, parts, world.size, union=True, group=world.group, wrap=DistributedDataParallel)
    assert (weights_of(*found[:2]) - weights_of(*expected[:2])).abs().max() < 1e-12
    assert found[2] == pytest.approx(expected[2], abs=1e-12)
    micro = trained(config, parts, world.size, group=world.group, wrap=DistributedDataParallel)
    assert (weights_of(*micro[:2]) - weights_of(*expected[:2])).abs().max() > 1e-4


@pytest.mark.world_size([2, 3])
def test_replicas_in_float32_are_bitwise_equal_and_within_1e_7_of_one_process(world):
    config = ClubConfig()
    torch.manual_seed(world.rank)  # rank zero's weights are what counts
    club = CLUBLoss(4, 3, config)
    torch.manual_seed(0)
    alone = CLUBLoss(4, 3, config, group=None)
    for step in range(4):
        data = batch(step, dtype=torch.float32)
        x, y = data[:, :4], data[:, 3:]
        sizes = SIZES[world.size]
        club.fit(x.split(sizes)[world.rank], y.split(sizes)[world.rank])
        alone.fit(x, y)
        assert_replicas_equal(club.estimator.state_dict(), step=step)
        difference = vector(club.estimator.parameters) - vector(alone.estimator.parameters)
        assert difference.abs().max() < 1e-7


def test_averaging_the_ranks_local_means_would_be_another_fit():
    """The mistake that summing over N avoids: the gradient of q is off by more than a tenth where ranks are uneven."""
    torch.manual_seed(0)
    estimator = CLUBLoss(4, 3, ClubConfig(), group=None).estimator
    estimator.q.double()
    x, y = batch(0)[:, :4], batch(0)[:, 3:]

    def gradient(rows):
        from reference_trainer.estimator import nll_sum

        loss = nll_sum(*estimator.q(x[rows]), y[rows]) / (rows.stop - rows.start)
        return torch.cat([each.flatten() for each in torch.autograd.grad(loss, estimator.parameters)])

    averaged = (gradient(slice(0, 3)) + gradient(slice(3, SAMPLES))) / 2
    exact = gradient(slice(0, SAMPLES))
    assert ((averaged - exact).norm() / exact.norm()) > 0.1


@pytest.mark.world_size(2)
def test_a_state_that_is_loaded_is_rank_zeros_on_every_rank_and_training_goes_on_as_if_uninterrupted(world, tmp_path):
    config = ClubConfig(update_every=2, warmup_steps=10)
    x, y = batch(0)[:, :4], batch(0)[:, 3:]
    club = CLUBLoss(4, 3, config)
    for step in range(3):
        club(x + step, y)
    torch.save(club.state_dict(), tmp_path / f"{world.rank}.pt")
    state = torch.load(tmp_path / f"{world.rank}.pt", weights_only=True)
    expected = [club(x + step, y).loss for step in (3, 4, 5)]
    resumed = CLUBLoss(4, 3, config)
    if world.rank == 1:  # rank zero's is what counts
        for tensor in state["estimator"]["q"].values():
            tensor.zero_()
        state["estimator"]["optimizer"]["state"][0]["exp_avg"].zero_()
    resumed.load_state_dict(state)
    for step, right in zip((3, 4, 5), expected, strict=True):
        assert torch.equal(resumed(x + step, y).loss, right)
    assert_replicas_equal(resumed.state_dict())
