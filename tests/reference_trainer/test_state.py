"""Every piece of state is in the checkpoint: one that is added and not saved is found."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from trainer_runs import EIGHT_STEPS as CONFIG  # noqa: E402
from trainer_runs import same  # noqa: E402

from reference_trainer.checkpoint.run import RunCheckpoints  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.objectives.disentangle import Disentangle  # noqa: E402
from reference_trainer.state import TrainState  # noqa: E402
from reference_trainer.trainer import Trainer, build_state  # noqa: E402

pytestmark = pytest.mark.runtime


def stateful(value, where="trainer", seen=None):
    """All objects with a ``state_dict``, by the way to them; what is in modules and optimizers is theirs."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, (str, bytes, torch.Tensor, type)):
        return {}
    seen.add(id(value))
    found = {where: value} if hasattr(value, "state_dict") else {}
    if isinstance(value, (nn.Module, torch.optim.Optimizer)):
        return found
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
    else:
        inner = getattr(value, "__dict__", {}).items()
    for name, each in list(inner):
        found |= stateful(each, f"{where}.{name}", seen)
    return found


def lost(trainer, fresh, folder):
    """Saves a trained trainer, loads it into a fresh one: the pieces of state that are not equal then."""
    config, world = trainer.config, World()
    with RunCheckpoints(folder, config, trainer.plan, world) as checkpoints:
        checkpoints.begin(trainer.state)
        for _ in trainer.steps():
            pass
        trainer.state.best = None
        checkpoints.save(trainer.state)
        checkpoints.begin(fresh.state)
    before, after = stateful(trainer), stateful(fresh)
    assert before.keys() == after.keys()
    plain = [
        field.name
        for field in fields(TrainState)
        if not hasattr(getattr(trainer.state, field.name), "state_dict")
        and getattr(trainer.state, field.name) != getattr(fresh.state, field.name)
    ]
    return plain + [name for name in before if not same(before[name].state_dict(), after[name].state_dict())]


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_no_piece_of_state_that_a_trainer_reaches_is_lost(tmp_path, precision):
    config = replace(CONFIG, precision=precision)
    trainer, fresh = Trainer(config, World()), Trainer(config, World())
    assert lost(trainer, fresh, tmp_path) == []
    # The test sees what training moves: the objective, the estimator within, its network and its optimizer, ...
    trained = "Disentangle Disentangler CLUBLoss Estimator GaussianQ Adam AdamW LambdaLR Ema TrainState"
    assert {type(each).__name__ for each in stateful(trainer).values()} >= {*trained.split(), "GradScaler"}


def test_a_piece_of_state_that_somebody_adds_without_saving_it_is_found(tmp_path):
    class Forgetful(Disentangle):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.critic = nn.Linear(1, 1)

        def loss(self, forward, batch):
            with torch.no_grad():
                self.critic.weight += 1
            return super().loss(forward, batch)

    def made():
        torch.manual_seed(5)
        objective = Forgetful(CONFIG.disentangle, CONFIG.club, World(), seed=3)
        return Trainer(CONFIG, World(), objective=objective)

    assert lost(made(), made(), tmp_path) == ["trainer.state.objective.critic"]


def test_a_scaler_that_is_not_saved_is_found(tmp_path, monkeypatch):
    config = replace(CONFIG, precision="fp16")
    trainer, fresh = Trainer(config, World()), Trainer(config, World())
    saved = TrainState.state_dict
    monkeypatch.setattr(
        TrainState, "state_dict", lambda self: saved(self) | {"scaler": fresh.state.scaler.state_dict()}
    )
    assert "trainer.state.scaler" in lost(trainer, fresh, tmp_path)


def test_a_state_can_be_made_without_a_trainer():
    plan = CONFIG.plan(samples=40, world_size=1)
    objective = Disentangle(CONFIG.disentangle, CONFIG.club, World(), seed=0)
    state = build_state(objective, CONFIG, plan)
    other = build_state(Disentangle(CONFIG.disentangle, CONFIG.club, World(), seed=0), CONFIG, plan)
    other.load_state_dict(state.state_dict())
    assert same(state.state_dict(), other.state_dict())
