"""One optimizer step on several ranks is the step of one process on the whole batch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from validate_ddp.testing import assert_replicas_equal, assert_same_collectives  # noqa: E402

from reference_trainer.config import ConfigError  # noqa: E402
from reference_trainer.core.objective import Batch, Loss, Objective  # noqa: E402
from reference_trainer.core.step import train_step  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.state import Ema  # noqa: E402
from reference_trainer.trainer import wrap  # noqa: E402

pytestmark = pytest.mark.runtime


class Regression(Objective):
    """Squared error of a small network; samples with x[0] > 0 count twice, if weighted."""

    def __init__(self, weighted=False):
        torch.manual_seed(0)
        self.module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        self.weighted = weighted

    def weights(self, batch):
        positive = batch.data["x"][:, 0] > 0
        return 1.0 + positive if self.weighted else torch.ones(len(batch), dtype=torch.float64)

    def count(self, batch):
        return int(self.weights(batch).sum())

    def loss(self, forward, batch):
        error = (forward(batch.data["x"]).squeeze(1) - batch.data["y"]) ** 2 * self.weights(batch)
        return Loss(error.sum(), {"error": error.detach().sum()}, {})


def samples(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return x, x.sum(1) ** 2


def batches_of(x, y, sizes):
    """One batch for each size, in order."""
    parts = zip(x.split(sizes), y.split(sizes), strict=True)
    return [Batch(torch.arange(len(a)), 0, 0, {"x": a, "y": b}) for a, b in parts]


def steps(world, sizes_of_ranks, *, weighted=False, clip=None, count=3):
    """Weights after some steps; sizes_of_ranks[r][j]: samples of rank r in micro-step j."""
    objective = Regression(weighted)
    model = wrap(objective.module, world)
    optimizer = torch.optim.Adam(objective.parameter_groups(), lr=0.1)
    total = sum(map(sum, sizes_of_ranks))
    results = []
    for step in range(count):
        x, y = samples(total, step)
        before = sum(map(sum, sizes_of_ranks[: world.rank]))
        mine = slice(before, before + sum(sizes_of_ranks[world.rank]))
        batches = batches_of(x[mine], y[mine], sizes_of_ranks[world.rank])
        results.append(train_step(model, objective, optimizer, batches, world=world, clip=clip))
    weights = torch.cat([each.detach().flatten() for each in objective.module.parameters()])
    return weights, [result.grad_norm.item() for result in results]


def steps_here(sizes, **options):
    """``steps`` on a rank of a world."""
    return steps(World.current(), sizes, **options)


SIZES = [
    [[4], [4]],
    [[5], [2]],
    [[6], [0]],
    [[2, 3], [1, 4]],
    [[0, 3], [2, 0]],
    [[1, 1, 1], [7, 1, 0], [0, 0, 2]],
]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("sizes", SIZES)
def test_ranks_with_uneven_empty_and_accumulated_batches_take_the_single_process_step(worlds, sizes, clip, weighted):
    expected, norms = steps(World(), [[sum(map(sum, sizes))]], weighted=weighted, clip=clip)
    for weights, seen in worlds.run(steps_here, sizes, weighted=weighted, clip=clip, world_size=len(sizes)):
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-13)
        assert seen == pytest.approx(norms, abs=1e-13)


@pytest.mark.world_size(2)
def test_replicas_stay_bitwise_equal_and_collectives_the_same(world):
    current = World.current()
    objective = Regression()
    model = wrap(objective.module, current)
    optimizer = torch.optim.Adam(objective.parameter_groups(), lr=0.1)
    for step in range(5):
        sizes = [3, 1] if world.rank else [2, 5]
        batches = batches_of(*samples(sum(sizes), 10 * step + world.rank), sizes)
        with assert_same_collectives():
            train_step(model, objective, optimizer, batches, world=current)
        assert_replicas_equal(objective.module, step=step)
        assert_replicas_equal(optimizer.state_dict(), step=step)


@pytest.mark.world_size(2)
def test_gradients_are_sent_once_a_step_however_many_micro_steps(world):
    current = World.current()
    objective = Regression()
    model = wrap(objective.module, current)
    sent = []

    def hook(state, bucket):
        sent.append(bucket.buffer().numel())
        return (
            torch.distributed.all_reduce(bucket.buffer(), async_op=True)
            .get_future()
            .then(lambda future: future.value()[0] / 2)
        )

    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(objective.parameter_groups(), lr=0.1)
    train_step(model, objective, optimizer, batches_of(*samples(8), [2, 2, 2, 2]), world=current)
    assert sum(sent) == sum(each.numel() for each in objective.module.parameters())


def test_the_result_has_sums_that_divide_by_the_total_to_means():
    objective = Regression(weighted=True)
    x, y = samples(6)
    with torch.no_grad():
        error = (objective.module(x).squeeze(1) - y) ** 2 * (1.0 + (x[:, 0] > 0))
    optimizer = torch.optim.SGD(objective.parameter_groups(), lr=0.1)
    result = train_step(objective.module, objective, optimizer, batches_of(x, y, [2, 4]), world=World())
    assert result.total == 6 + int((x[:, 0] > 0).sum())
    assert result.sums["loss"].item() == pytest.approx(error.sum().item())
    assert result.sums["error"].item() == pytest.approx(error.sum().item())


def test_schedule_and_average_advance_once_a_step():
    objective = Regression()
    optimizer = torch.optim.SGD(objective.parameter_groups(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    ema = Ema(objective.module, 0.5)
    start = [each.detach().clone() for each in objective.module.parameters()]
    train_step(
        objective.module,
        objective,
        optimizer,
        batches_of(*samples(6), [2, 4]),
        world=World(),
        scheduler=scheduler,
        ema=ema,
    )
    assert optimizer.param_groups[0]["lr"] == 0.5
    for before, now, average in zip(start, objective.module.parameters(), ema.state_dict().values(), strict=True):
        torch.testing.assert_close(average, (before + now.detach()) / 2)


@given(st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), min_size=2, max_size=3))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sizes_give_the_single_process_step(worlds, sizes):
    total = sum(map(sum, sizes))
    if total == 0:
        return
    expected, _ = steps(World(), [[total]], count=1)
    for weights, _ in worlds.run(steps_here, sizes, count=1, world_size=len(sizes)):
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-13)


def test_batch_statistics_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"^1 is a BatchNorm1d: .*use GroupNorm or LayerNorm$"):
        wrap(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), World())
