"""Evaluation on any number of ranks is the mean over all samples, each counted once."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from trainer_runs import Numbers  # noqa: E402

from reference_trainer.core.objective import Objective  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.observe import evaluate  # noqa: E402
from reference_trainer.precision import Precision  # noqa: E402

pytestmark = pytest.mark.runtime

FLOAT64 = Precision.of("float64")


class Squares(Objective):
    """Its metrics are powers of the samples; it notes how it was called."""

    def __init__(self):
        self.module = nn.Dropout(0.5)
        self.sizes, self.modes = [], []

    def evaluate(self, module, batch):
        self.sizes.append(len(batch))
        self.modes.append((module.training, torch.is_grad_enabled()))
        x = module(batch.data["x"])
        return {"square": (x**2).sum(), "mean": x.sum(), "count": torch.tensor(len(batch))}


@pytest.mark.world_size([1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_the_mean_is_over_every_sample_once_however_unevenly_ranks_share_them(world, count):
    objective = Squares()
    found = evaluate(objective, Numbers(count), world=World.current(), batch_size=2, precision=FLOAT64)
    numbers = range(count)
    assert found == {"mean": sum(numbers) / count, "square": sum(n * n for n in numbers) / count, "count": 1.0}
    assert max(objective.sizes) <= 2


class Counted(Squares):
    """A mean over what is even: of a batch of odd numbers alone it has nothing to say."""

    def count(self, batch):
        return int((batch.data["x"] % 2 == 0).sum())


@pytest.mark.world_size([1, 2])
def test_the_mean_is_over_what_the_objective_counts(world):
    how = {"world": World.current(), "batch_size": 2, "precision": FLOAT64}
    assert evaluate(Counted(), Numbers(7), **how)["mean"] == 21 / 4


def test_gradients_and_dropout_are_off_within_and_the_mode_is_restored():
    objective = Squares()
    evaluate(objective, Numbers(4), world=World(), batch_size=2, precision=FLOAT64)
    assert set(objective.modes) == {(False, False)}
    assert objective.module.training
    objective.module.eval()
    evaluate(objective, Numbers(4), world=World(), batch_size=2, precision=FLOAT64)
    assert not objective.module.training


def test_the_mode_is_restored_after_an_exception():
    objective = Squares()
    objective.evaluate = lambda module, batch: 1 / 0
    with pytest.raises(ZeroDivisionError):
        evaluate(objective, Numbers(4), world=World(), batch_size=2, precision=FLOAT64)
    assert objective.module.training


def test_an_empty_source_is_refused():
    with pytest.raises(ValueError, match="nothing to evaluate on"):
        evaluate(Squares(), Numbers(0), world=World(), batch_size=2, precision=FLOAT64)
