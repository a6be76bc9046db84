"""Blocks that are computed again in the backward pass: the same loss and gradients, bit by bit, for less memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from trainer_runs import everything  # noqa: E402

from reference_trainer.config import Config, ConfigError, DataConfig, LoraConfig, OptimConfig  # noqa: E402
from reference_trainer.core.objective import Loss, Objective  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.precision import recompute  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

CONFIG = Config(
    steps=4,
    global_batch=24,
    seed=1,
    optim=OptimConfig(clip=1.0),
    data=DataConfig(train_samples=60, validation_samples=10),
)


class Block(nn.Module):
    """With dropout: the second time has to draw what the first did."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(64, 64)
        self.dropout = nn.Dropout(0.3)
        self.calls = 0

    def forward(self, x, *, factor):
        self.calls += 1
        return x + factor * self.dropout(F.gelu(self.q(x)))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, factor=0.5)
        return self.head(x)


class Digit(Objective):
    def __init__(self):
        torch.manual_seed(0)
        self.module = Deep()

    def blocks(self):
        return list(self.module.blocks)

    def loss(self, forward, batch):
        loss = F.cross_entropy(forward(batch.data["image"]), batch.data["digit"], reduction="sum")
        return Loss(loss, {}, {})

    def evaluate(self, module, batch):
        return {"error": self.loss(module, batch).sum}


def trained(config):
    """Trains here: losses, weights, moments, how often each block was called, and metrics."""
    trainer = Trainer(config, World.current(), objective=Digit())
    blocks = trainer.state.objective.module.blocks
    before = [block.calls for block in blocks]
    losses = [result.sums["loss"].item() for result in trainer.steps()]
    calls = [block.calls - each for block, each in zip(blocks, before, strict=True)]
    state = everything(trainer.state)
    moments = list(state["moments"].values())
    return losses, [*state["model"].values(), *moments], calls, trainer.evaluate(trainer.data.validation)


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_that_recomputes_is_the_run_that_does_not_bit_by_bit(worlds, world_size, precision):
    config = replace(CONFIG, precision=precision, accumulation=2)
    kept = worlds.run(trained, config, world_size=world_size)
    again = worlds.run(trained, replace(config, activation_checkpointing=True), world_size=world_size)
    for one, other in zip(again, kept, strict=True):
        assert one[0] == other[0] and one[3] == other[3]
        assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))
        assert one[2] == [2 * calls for calls in other[2]] and min(other[2]) > 0


def test_lora_within_blocks_is_trained_all_the_same():
    config = replace(CONFIG, lora=LoraConfig(rank=2, targets=("q",)))
    kept, again = trained(config), trained(replace(config, activation_checkpointing=True))
    assert all(torch.equal(a, b) for a, b in zip(again[1], kept[1], strict=True))


def test_inside_of_a_block_nothing_is_kept_from_the_forward_pass():
    def kept(module):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda each: sizes.append(each.numel()) or each, lambda each: each
        ):
            module(torch.ones(100, 64, requires_grad=True), factor=0.5)
        return sum(sizes)

    block = Block()
    before = kept(block)
    recompute(block)
    assert kept(block) < before / 2


def test_a_recomputed_block_keeps_its_names_and_its_kind():
    module = Deep()
    names = list(module.state_dict())
    recompute(module.blocks[0])
    assert list(module.state_dict()) == names
    assert isinstance(module.blocks[0], Block) and type(module.blocks[0]).__name__ == "Block"
    with torch.no_grad():
        module.blocks[0](torch.ones(1, 64), factor=1.0)
    assert module.blocks[0].calls == 1


def test_an_objective_without_blocks_is_refused_in_one_line():
    class Plain(Digit):
        def blocks(self):
            return []

    with pytest.raises(ConfigError, match=r"^activation_checkpointing: Plain names no blocks .*leave it off") as told:
        Trainer(replace(CONFIG, activation_checkpointing=True), World(), objective=Plain())
    assert "\n" not in str(told.value)
