"""What is executed is what was planned: steps, samples, duplicates, learning rates, on random configurations."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from hypothesis import assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from trainer_runs import Numbers  # noqa: E402

from reference_trainer.config import Config, OptimConfig  # noqa: E402
from reference_trainer.core.objective import Loss, Objective  # noqa: E402
from reference_trainer.core.plan import Plan  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.trainer import Data, Trainer  # noqa: E402

pytestmark = pytest.mark.runtime


class Null(Objective):
    """Trains one number towards nothing, and notes which samples it has seen in which epoch."""

    def __init__(self):
        self.module = nn.Linear(1, 1, bias=False)
        self.seen = {}

    def loss(self, forward, batch):
        self.seen.setdefault(batch.epoch, []).extend(batch.index.tolist())
        return Loss(forward(torch.zeros(len(batch), 1)).sum(), {}, {})

    def rehearse(self, forward, batch):
        return forward(torch.zeros(len(batch), 1)).sum()


def executed(config, samples):
    """Runs the trainer here. Collective: every rank."""
    objective = Null()
    source = Numbers(samples)
    trainer = Trainer(config, World.current(), data=Data(source, source, source), objective=objective)
    rates = []
    for _ in trainer.steps():
        rates.append(trainer.lr)
    return {"steps": trainer.state.step, "lr": rates, "seen": objective.seen, "plan": trainer.plan}


@st.composite
def configurations(draw):
    """A world size, a number of samples, and a configuration that divides by the world."""
    world_size = draw(st.integers(1, 3))
    accumulation = draw(st.integers(1, 3))
    batch_size = draw(st.integers(1, 4))
    whole = {"global_batch": batch_size * world_size * accumulation}
    per_rank = {"batch_size": batch_size}
    config = Config(
        **draw(st.sampled_from([whole, per_rank])),
        **draw(st.sampled_from([{"steps": draw(st.integers(1, 8))}, {"epochs": draw(st.integers(1, 2))}])),
        accumulation=accumulation,
        repeat=draw(st.integers(1, 2)),
        drop_last=draw(st.booleans()),
        seed=draw(st.integers(0, 2**40)),
        optim=OptimConfig(
            lr=draw(st.sampled_from([1e-3, 0.5])),
            schedule=draw(st.sampled_from(["constant", "linear", "cosine"])),
            warmup_steps=draw(st.integers(0, 5)),
            lr_scaling=draw(st.sampled_from(["none", "linear", "sqrt"])),
            base_batch=draw(st.integers(1, 64)),
        ),
    )
    samples = draw(st.integers(1, 40))
    assume(not config.drop_last or samples * config.repeat >= batch_size * world_size * accumulation)
    return world_size, samples, config


@pytest.mark.parametrize(
    "examples", [15, pytest.param(60, marks=pytest.mark.slow), pytest.param(400, marks=pytest.mark.soak)]
)
def test_the_trainer_executes_exactly_its_plan(worlds, examples):
    @given(configurations())
    @settings(max_examples=examples)
    def planned_is_executed(configuration):
        compare(worlds, *configuration)

    planned_is_executed()


def compare(worlds, world_size, samples, config):
    """Runs a configuration, and holds what was executed against its plan."""
    ranks = worlds.run(executed, config, samples, world_size=world_size)
    plan: Plan = ranks[0]["plan"]
    size = plan.effective_batch_size

    for rank in ranks:
        assert rank["plan"] == plan
        assert rank["steps"] == plan.optimizer_steps
        scaled = {"none": 1, "linear": size / config.optim.base_batch, "sqrt": (size / config.optim.base_batch) ** 0.5}
        peak = config.optim.lr * scaled[config.optim.lr_scaling]
        factors = [config.optim.factor(step, plan.optimizer_steps) for step in range(plan.optimizer_steps)]
        assert rank["lr"] == pytest.approx([peak * factor for factor in factors])
        for epoch in range(plan.optimizer_steps // plan.optimizer_steps_per_epoch):
            assert len(rank["seen"][epoch]) == plan.samples_per_rank
            assert len(rank["seen"][epoch]) == plan.micro_steps_per_epoch * plan.batch_size

    # Whole epochs: every sample as often as it repeats, but for what the plan says is padded or dropped.
    for epoch in range(plan.optimizer_steps // plan.optimizer_steps_per_epoch):
        seen = sorted(index for rank in ranks for index in rank["seen"][epoch])
        positions = samples * config.repeat
        assert len(seen) == positions + plan.padded - plan.dropped
        extra = sum(max(0, seen.count(index) - config.repeat) for index in range(samples))
        missing = sum(max(0, config.repeat - seen.count(index)) for index in range(samples))
        assert (extra, missing) == (plan.padded, plan.dropped)
