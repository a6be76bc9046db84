"""The lens: what is frozen, what each part is trained with, and what its metrics mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from reference_trainer.config import Config, ConfigError, DataConfig, LensConfig, OptimConfig  # noqa: E402
from reference_trainer.core.objective import Batch  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.objectives.classifier import Classifier  # noqa: E402
from reference_trainer.objectives.lens import build  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

CONFIG = Config(
    objective="lens",
    precision="float64",
    steps=4,
    global_batch=32,
    data=DataConfig(train_samples=100, validation_samples=10),
    lens=LensConfig(backbone_hidden=(12, 6), backbone_steps=20, hidden=8, code=3),
)


def with_lens(**changes):
    return replace(CONFIG, lens=replace(CONFIG.lens, **changes))


def whole(trainer):
    """All training samples as one batch."""
    index = torch.arange(len(trainer.data.train))
    return Batch(index, 0, 0, trainer.data.train.fetch(index, 0)).to(torch.device("cpu"), torch.float64)


@pytest.mark.world_size(2)
@pytest.mark.parametrize("train", [("encoder", "decoder"), ("encoder",), ("decoder",)])
def test_frozen_parts_do_not_move_and_have_no_optimizer_state(world, train):
    trainer = Trainer(with_lens(train=train), World.current())
    module, optimizer = trainer.state.objective.module, trainer.state.optimizer
    before = {name: each.clone() for name, each in module.state_dict().items()}
    for _ in trainer.steps():
        pass
    moved = {name.split(".")[0] for name, each in module.state_dict().items() if not torch.equal(each, before[name])}
    assert moved == set(train)
    with_state = {id(each) for each in optimizer.state}
    for part in ("backbone", "encoder", "decoder"):
        parameters = list(getattr(module, part).parameters())
        assert [each.requires_grad for each in parameters] == [part in train] * len(parameters)
        assert [id(each) in with_state for each in parameters] == [part in train] * len(parameters)
        assert getattr(module, part).training is (part in train)


def test_frozen_parts_stay_in_evaluation_mode_whatever_mode_is_asked_for():
    module = build(with_lens(train=("decoder",)), World()).module
    for mode in (True, False, True):
        module.train(mode)
        assert module.training is mode and module.decoder.training is mode
        assert not module.backbone.training and not module.encoder.training
        assert not any(each.training for each in module.backbone.modules())


def test_each_part_has_its_own_learning_rate_all_along_the_schedule():
    optim = OptimConfig(lr=1e-2, weight_decay=0.3, schedule="linear", warmup_steps=2)
    config = replace(with_lens(encoder_lr=0.5, decoder_lr=2.0), optim=optim)
    trainer = Trainer(config, World())
    encoder, decoder = trainer.state.optimizer.param_groups
    assert [id(each) for each in encoder["params"]] == [
        id(e) for e in trainer.state.objective.module.encoder.parameters()
    ]
    steps = trainer.steps()
    rates = encoder["lr"], decoder["lr"]
    for _ in steps:
        # What is logged is the run's, of which the parts' are multiples.
        assert rates == pytest.approx((0.5 * trainer.lr, 2.0 * trainer.lr))
        assert trainer.lr <= 1e-2
        rates = encoder["lr"], decoder["lr"]


def test_consistency_is_learned_through_the_frozen_rest_of_the_backbone():
    trainer = Trainer(CONFIG, World())
    objective, module = trainer.state.objective, trainer.state.objective.module
    objective.losses(module(whole(trainer).data["image"]))["consistency"].backward()
    for part in (module.encoder, module.decoder):
        assert all(each.grad.abs().max() > 0 for each in part.parameters())
    assert all(each.grad is None for each in module.backbone.parameters())


class Constant(nn.Module):
    """Says the mean of all activations."""

    def forward(self, code):
        return torch.zeros(len(code), 12, dtype=torch.float64)


def test_explained_variance_is_nought_for_the_mean_one_for_the_activations_themselves_and_exact_between():
    trainer = Trainer(CONFIG, World())
    objective, module, batch = trainer.state.objective, trainer.state.objective.module, whole(trainer)

    def explained():
        return objective.evaluate(module, batch)["explained_variance"].item() / len(batch)

    with torch.no_grad():
        out = module(batch.data["image"])
        seen = module.backbone.before(batch.data["image"], 1)
        rebuilt = out.rebuilt * module.scale + module.mean
        lost, total = (seen - rebuilt).square().sum(), (seen - seen.mean(0)).square().sum()
        assert explained() == pytest.approx(1 - (lost / total).item())
        encoder = module.encoder
        module.encoder, module.decoder = nn.Identity(), nn.Identity()
        found = objective.evaluate(module, batch)
        assert explained() == pytest.approx(1.0)
        assert found["agreement"] == len(batch) and found["accuracy"] == found["backbone_accuracy"]
        assert found["consistency"].item() == pytest.approx(0.0, abs=1e-12)
        module.encoder, module.decoder = encoder, Constant()
        assert explained() == pytest.approx(0.0)


def test_a_backbone_is_loaded(tmp_path):
    kept = Classifier((12, 6)).double()
    torch.save(kept.state_dict(), tmp_path / "backbone.pt")
    found = build(with_lens(backbone=str(tmp_path / "backbone.pt")), World()).module.backbone
    assert all(torch.equal(each, kept.state_dict()[name]) for name, each in found.state_dict().items())
    with pytest.raises(ConfigError, match=r"lens\.backbone: .* does not fit .* lens\.backbone_hidden must describe it"):
        build(with_lens(backbone=str(tmp_path / "backbone.pt"), backbone_hidden=(9,)), World())


def test_it_learns():
    config = replace(CONFIG, precision="float32", steps=150, global_batch=100)
    config = replace(config, lens=LensConfig(backbone_hidden=(24, 12), hidden=24, backbone_steps=50))
    trainer = Trainer(replace(config, optim=OptimConfig(lr=1e-2)), World())
    for _ in trainer.steps():
        pass
    found = trainer.evaluate(trainer.data.train)
    assert found["explained_variance"] > 0.8 and found["agreement"] > 0.9
