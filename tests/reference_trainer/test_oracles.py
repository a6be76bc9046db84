"""The trainer on many ranks is the trainer on one: losses, weights, estimator, replicas, metrics."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import Tensor  # noqa: E402
from validate_ddp.testing import assert_replicas_equal  # noqa: E402

from reference_trainer.config import (  # noqa: E402
    ClubConfig,
    Config,
    DistillationConfig,
    EmaConfig,
    FlowMatchingConfig,
    LensConfig,
    OptimConfig,
)
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

CONFIG = Config(
    precision="float64", steps=8, global_batch=64, club=ClubConfig(weight=0.3), ema=EmaConfig(decay=0.9), seed=3
)
TOLERANCE = 1e-12
OTHERS = {
    each.objective: each
    for each in (
        replace(CONFIG, objective="flow_matching", flow_matching=FlowMatchingConfig(width=8, depth=1, heads=2)),
        replace(
            CONFIG,
            objective="distillation",
            distillation=DistillationConfig(hidden=(8,), teacher_hidden=(16, 12), teacher_steps=5),
        ),
        replace(
            CONFIG,
            objective="lens",
            steps=20,
            lens=LensConfig(backbone_hidden=(16, 12), backbone_steps=5, hidden=8, code=4, decoder_lr=0.5),
        ),
    )
}
"""The other objectives, small."""
MORE = ((1, 2), (2, 4), (4, 1), (4, 2))
"""Ranks and micro-steps that `make test` leaves out."""


@dataclass
class Run:
    """What a run leaves on one rank."""

    losses: list[float]
    """Global mean loss of each step."""
    weights: Tensor
    """All parameters and buffers, flattened, float64."""
    estimators: Tensor
    """All tensors of the objective's own state, flattened, float64."""
    metrics: dict[str, float]
    """Of the validation part, at the end."""


def trained(config: Config) -> Run:
    """Trains here, in whatever world this is. Collective: every rank."""
    world = World.current()
    trainer = Trainer(config, world)
    losses = []
    for result in trainer.steps():
        loss = result.sums["loss"].double().clone()
        if world.size > 1:
            dist.all_reduce(loss)
        losses.append((loss / result.total).item())
    metrics = trainer.evaluate(trainer.data.validation)
    module, objective = trainer.state.objective.module, trainer.state.objective
    return Run(losses, flat(module.state_dict()), flat(objective.state_dict()), metrics)


def tensors(state: Any) -> list[Tensor]:
    """All tensors within nested containers, in order."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, dict):
        return [each for value in state.values() for each in tensors(value)]
    if isinstance(state, (list, tuple)):
        return [each for value in state for each in tensors(value)]
    return []


def flat(state: Any) -> Tensor:
    """The floating-point tensors within, as one vector."""
    found = [each.detach().double().flatten() for each in tensors(state) if each.is_floating_point()]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.float64)


def everything(trainer: Trainer) -> dict[str, Any]:
    """Parameters, buffers, estimators, optimizers and average."""
    state = trainer.state
    return {
        "module": state.objective.module.state_dict(),
        "objective": state.objective.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "ema": state.ema.state_dict() if state.ema else {},
    }


@pytest.fixture(scope="module")
def whole_batch():
    """The oracle: one process, the whole batch at once."""
    return trained(CONFIG)


@pytest.fixture(scope="module")
def whole_batch_of():
    """The same for the other objectives, each trained once."""
    return functools.cache(lambda objective: trained(OTHERS[objective]))


@pytest.mark.parametrize(
    ("world_size", "accumulation"),
    [(1, 1), (1, 4), (2, 1), (2, 2), (4, 4), *(pytest.param(*at, marks=pytest.mark.slow) for at in MORE)],
)
def test_any_number_of_ranks_and_micro_steps_trains_as_one_process_on_the_whole_batch(
    worlds, whole_batch, world_size, accumulation
):
    config = replace(CONFIG, accumulation=accumulation)
    for found in worlds.run(trained, config, world_size=world_size):
        assert len(found.losses) == 8
        assert found.losses == pytest.approx(whole_batch.losses, abs=TOLERANCE)
        torch.testing.assert_close(found.weights, whole_batch.weights, rtol=0, atol=TOLERANCE)
        assert found.estimators.numel() > 0
        torch.testing.assert_close(found.estimators, whole_batch.estimators, rtol=0, atol=TOLERANCE)
        assert found.metrics == pytest.approx(whole_batch.metrics, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("world_size", "accumulation"),
    [(1, 2), (2, 1), (2, 2), (4, 2), *(pytest.param(*at, marks=pytest.mark.slow) for at in ((1, 4), (2, 4)))],
)
@pytest.mark.parametrize("objective", OTHERS)
def test_so_does_any_other_objective(worlds, whole_batch_of, objective, world_size, accumulation):
    config, alone = replace(OTHERS[objective], accumulation=accumulation), whole_batch_of(objective)
    assert alone.losses[-1] < alone.losses[0]
    for found in worlds.run(trained, config, world_size=world_size):
        assert found.losses == pytest.approx(alone.losses, abs=TOLERANCE)
        torch.testing.assert_close(found.weights, alone.weights, rtol=0, atol=TOLERANCE)
        assert found.metrics == pytest.approx(alone.metrics, abs=TOLERANCE)


@pytest.mark.parametrize("objective", OTHERS)
@pytest.mark.world_size(3)
def test_replicas_of_any_other_objective_are_bitwise_equal_after_every_step(world, objective):
    config = replace(OTHERS[objective], precision="float32", accumulation=2, global_batch=60, steps=4)
    trainer = Trainer(replace(config, optim=OptimConfig(clip=1.0)), World.current())
    for step, _ in enumerate(trainer.steps()):
        assert_replicas_equal(everything(trainer), step=step)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.world_size([2, 3])
def test_replicas_are_bitwise_equal_after_every_step(world, precision, accumulation):
    config = replace(CONFIG, precision=precision, accumulation=accumulation, global_batch=60, steps=8)
    trainer = Trainer(replace(config, optim=OptimConfig(clip=1.0)), World.current())
    for step, _ in enumerate(trainer.steps()):
        assert_replicas_equal(everything(trainer), step=step)


@pytest.mark.parametrize("accumulation", [2, 4])
def test_micro_accumulation_of_club_does_not_depend_on_the_number_of_ranks(worlds, accumulation):
    club = replace(CONFIG.club, accumulation="micro")
    config = replace(CONFIG, accumulation=accumulation, club=club, steps=8)
    alone = trained(config)
    for found in worlds.run(trained, config, world_size=2):
        torch.testing.assert_close(found.weights, alone.weights, rtol=0, atol=TOLERANCE)


def test_micro_accumulation_is_another_gradient_than_the_union(whole_batch):
    # What makes the two passes of "union" worth a forward.
    club = replace(CONFIG.club, accumulation="micro")
    found = trained(replace(CONFIG, accumulation=4, club=club))
    assert (found.weights - whole_batch.weights).abs().max() > 1e-4
