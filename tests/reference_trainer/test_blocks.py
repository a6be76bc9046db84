"""The objectives under settings that reach into a module: recomputed blocks, half precision, LoRA."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

from reference_trainer.config import (  # noqa: E402
    Config,
    DataConfig,
    DisentangleConfig,
    DistillationConfig,
    FlowMatchingConfig,
    LensConfig,
    LoraConfig,
)
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

CONFIG = Config(
    precision="float64",
    steps=2,
    global_batch=16,
    data=DataConfig(train_samples=32, validation_samples=10),
    disentangle=DisentangleConfig(hidden=(8,), features=4),
    flow_matching=FlowMatchingConfig(width=8, depth=2, heads=2),
    distillation=DistillationConfig(hidden=(8, 6), teacher_hidden=(8,), teacher_steps=1),
    lens=LensConfig(backbone_hidden=(8,), backbone_steps=1, hidden=6, code=2),
)


def gradients(trainer):
    objective, batch = trainer.state.objective, trainer.first_batch()
    loss = objective.rehearse(objective.module, batch)
    loss.backward()
    return [loss.detach(), *(each.grad for each in objective.module.parameters() if each.requires_grad)]


NAMES = ["disentangle", "flow_matching", "distillation", "lens"]


@pytest.mark.parametrize("name", NAMES)
def test_blocks_computed_again_give_the_same_gradients(name):
    config = replace(CONFIG, objective=name)
    plain, again = Trainer(config, World()), Trainer(config, World())
    objective = again.state.objective
    parts, calls = {id(each) for each in objective.module.modules()}, []
    blocks = objective.blocks()
    assert blocks and all(id(each) in parts for each in blocks)
    for block in blocks:
        forward = block.forward

        def counted(*given, forward=forward):
            calls.append(1)
            return forward(*given)

        block.forward = lambda *given, counted=counted: checkpoint(counted, *given, use_reentrant=False)
    for found, expected in zip(gradients(again), gradients(plain), strict=True):
        assert torch.equal(found, expected)
    assert len(calls) == 2 * len(blocks)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", NAMES)
def test_every_objective_trains_in_half_precision_as_in_full(name, precision):
    found, expected = (
        [(result.sums["loss"] / result.total).item() for result in Trainer(config, World()).steps()]
        for config in (
            replace(CONFIG, objective=name, steps=3, precision=each, activation_checkpointing=each == precision)
            for each in (precision, "float32")
        )
    )
    assert found == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("name", "trained"),
    [
        ("flow_matching", {"q", "k", "v", "o", "0", "2"}),
        ("lens", {"0", "2"}),
    ],
)
def test_lora_trains_its_own_weights_alone(name, trained):
    targets = ("q", "k", "v", "o", "ffn.0", "ffn.2") if name == "flow_matching" else ("encoder.0", "decoder.2")
    config = replace(CONFIG, objective=name, lora=LoraConfig(rank=2, targets=targets))
    trainer = Trainer(config, World())
    module = trainer.state.objective.module
    before = {key: each.clone() for key, each in module.state_dict().items()}
    for _ in trainer.steps():
        pass
    moved = {key for key, each in module.state_dict().items() if not torch.equal(each, before[key])}
    assert moved and all("lora" in key for key in moved)
    assert {key.partition(".lora")[0].rpartition(".")[2] for key in moved} == trained
