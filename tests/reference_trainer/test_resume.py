"""A run that goes on from its checkpoint is the run that never stopped, bit by bit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
from torch import nn  # noqa: E402
from trainer_runs import EIGHT_STEPS as CONFIG  # noqa: E402
from trainer_runs import same, saved_in, trained  # noqa: E402
from validate_ddp.testing import assert_replicas_equal  # noqa: E402

from reference_trainer.checkpoint import latest  # noqa: E402
from reference_trainer.checkpoint.run import RunCheckpoints  # noqa: E402
from reference_trainer.config import (  # noqa: E402
    DisentangleConfig,
)
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.objectives.disentangle import Disentangle  # noqa: E402
from reference_trainer.randomness import rng_state, seed_generators  # noqa: E402
from reference_trainer.state import settle_buckets  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime


class Noisy(Disentangle):
    """Draws from all of the rank's own generators, as dropout and other people's code do."""

    def loss(self, forward, batch):
        found = super().loss(forward, batch)
        drawn = torch.rand(()).item() + random.random() + float(np.random.rand())
        return found._replace(sum=found.sum * (0.8 + 0.2 * drawn))


def trainer_of(config):
    """With the noisy objective, made as the trainer makes its own."""
    world = World.current()
    torch.manual_seed(5)
    objective = Noisy(config.disentangle, config.club, world, seed=config.seed)
    return Trainer(config, world, objective=objective)


def noisy(config, folder, until):
    return trained(config, folder, until, trainer_of(config))


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.world_size([1, 3])
def test_a_resumed_run_is_the_uninterrupted_one_bit_by_bit(world, tmp_path, accumulation):
    config = replace(CONFIG, accumulation=accumulation)
    whole = noisy(config, tmp_path / "whole", 8)
    for until in (2, 5, 8):
        last = noisy(config, tmp_path / "parts", until)
    assert last["step"] == 8 and same(last, whole)
    assert_replicas_equal({name: last[name] for name in ("model", "ema", "moments", "objective")})


@pytest.mark.slow
@pytest.mark.world_size([3])
def test_the_first_step_after_a_wrap_rounds_as_the_others_do(world, tmp_path):
    # A module of more than one bucket, whose gradients come in another order than its parameters.
    config = replace(CONFIG, disentangle=DisentangleConfig(hidden=(1024, 512), features=4), steps=2)
    whole = noisy(config, tmp_path / "whole", 2)
    noisy(config, tmp_path / "parts", 1)
    assert same(noisy(config, tmp_path / "parts", 2)["model"], whole["model"])


@pytest.mark.world_size([2])
def test_settling_the_buckets_leaves_nothing_behind(world):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)
            self.dropout = nn.Dropout(0.5)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.dropout(self.linear(x))

    trainer = trainer_of(CONFIG)
    objective, batch = trainer.state.objective, trainer.first_batch()
    module = Counting()
    ddp = nn.parallel.DistributedDataParallel(module)
    objective.rehearse = lambda forward, batch: forward(torch.ones(3, 2)).sum()
    before, rng = {name: each.clone() for name, each in module.state_dict().items()}, rng_state(torch.device("cpu"))
    settle_buckets(ddp, objective, batch)
    assert same(dict(module.state_dict()), before) and same(rng_state(torch.device("cpu")), rng)
    assert all(each.grad is None for each in module.parameters())


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_a_run_goes_on_with_another_number_of_ranks_up_to_rounding(worlds, tmp_path, before, after, capfd):
    config = replace(CONFIG, precision="float64")
    # Without noise of the ranks' own, which no other number of ranks can have.
    parts = [(before, 4), (after, 8)]
    for size, until in parts:
        last = worlds.run(trained, config, tmp_path / "parts", until, world_size=size)[0]
    whole = worlds.run(trained, config, tmp_path / "whole", 8, world_size=1)[0]
    for name, weight in whole["model"].items():
        torch.testing.assert_close(last["model"][name], weight, rtol=0, atol=1e-12)


def test_ranks_that_did_not_exist_get_new_generators_and_it_is_said(worlds, tmp_path):
    worlds.run(noisy, CONFIG, tmp_path, 2, world_size=2)
    said = worlds.run(resumed_generators, CONFIG, tmp_path, world_size=3)
    assert (
        "saved by 2 ranks, goes on with 3: equal but for rounding; the random numbers of ranks 2 to 2 begin"
        in said[0][1]
    )
    kept = saved_in(latest(tmp_path))["rng"]
    assert [each[0]["torch"].tolist() for each in said[:2]] == [each["torch"].tolist() for each in kept]
    assert said[2][0]["torch"].tolist() not in [each["torch"].tolist() for each in kept]


def resumed_generators(config, folder):
    """The generators' state after resuming, and what was said."""
    import contextlib
    import io

    world, trainer, said = World.current(), trainer_of(config), io.StringIO()
    with RunCheckpoints(folder, config, trainer.plan, world) as checkpoints, contextlib.redirect_stderr(said):
        checkpoints.begin(trainer.state)
    return rng_state(world.device), said.getvalue()


def test_the_number_of_threads_is_put_back_because_sums_depend_on_it(tmp_path, capsys):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        noisy(CONFIG, tmp_path, 1)
        torch.set_num_threads(1)
        noisy(CONFIG, tmp_path, 2)
        assert torch.get_num_threads() == 2 and "2 threads a rank, as it was saved" in capsys.readouterr().err
    finally:
        torch.set_num_threads(threads)


def test_all_generators_are_seeded_by_one_number():
    states = []
    for seed in (1, 1, 2**40):
        seed_generators(seed)
        states.append(rng_state(torch.device("cpu")))
    assert same(states[0], states[1])
    assert all(not same(states[0][name], states[2][name]) for name in ("torch", "python", "numpy"))
