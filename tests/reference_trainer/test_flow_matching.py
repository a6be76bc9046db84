"""Flow matching: what the network is asked, what it is called, and what is drawn from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from reference_trainer.config import Config, DataConfig, EmaConfig, FlowMatchingConfig, LoraConfig  # noqa: E402
from reference_trainer.core.objective import Batch  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.objectives import flow_matching  # noqa: E402
from reference_trainer.randomness import keyed_normal  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

CONFIG = Config(
    objective="flow_matching",
    precision="float64",
    steps=4,
    global_batch=32,
    eval_every=2,
    data=DataConfig(train_samples=64, validation_samples=10),
    ema=EmaConfig(decay=0.5),
    flow_matching=FlowMatchingConfig(width=8, depth=1, heads=2, sampling_steps=2),
)


@pytest.fixture(scope="module")
def trainer():
    return Trainer(CONFIG, World())


def batch_of(trainer, index, step=0):
    return Batch(index, 0, step, trainer.data.train.fetch(index, 0)).to(torch.device("cpu"), torch.float64)


def test_noise_and_time_belong_to_the_sample_and_the_step(trainer):
    objective, index = trainer.state.objective, torch.arange(12)
    whole = objective.point(batch_of(trainer, index), "training")
    part = objective.point(batch_of(trainer, index[5:9]), "training")
    later = objective.point(batch_of(trainer, index, step=1), "training")
    for all_of_it, some, other in zip(whole, part, later, strict=True):
        assert torch.equal(all_of_it[5:9], some)
        assert not torch.isclose(all_of_it, other).flatten().any()


def test_the_velocity_carries_each_point_to_its_image(trainer):
    batch = batch_of(trainer, torch.arange(12))
    point = trainer.state.objective.point(batch, "training")
    arrived = point.x + (1 - point.t)[:, None] * point.velocity
    torch.testing.assert_close(arrived, 2 * batch.data["image"] - 1)


def test_patches_are_pixels_that_touch_and_go_back_to_where_they_were():
    image = torch.arange(128.0).view(2, 64)
    tokens = flow_matching._patches(image)
    assert tokens[0, 5].tolist() == [18.0, 19.0, 26.0, 27.0]  # rows 2 and 3, columns 2 and 3
    assert torch.equal(flow_matching._pixels(tokens), image)


class Known(nn.Module):
    """A flow that is known: the velocity from the sampler's noise to pictures that are all a quarter."""

    def __init__(self):
        super().__init__()
        self.weight, self.times, self.wanted = nn.Parameter(torch.zeros((), dtype=torch.float64)), [], []
        noise = keyed_normal(torch.arange(40), (64,), seed=7, tag="sampling", dtype=torch.float64)
        self.velocity = -0.5 - noise

    def forward(self, x, t, digit, rendering):
        self.times.append(set(t.tolist()))
        self.wanted = list(zip(rendering.tolist(), digit.tolist(), strict=True))
        return self.velocity


def test_sampling_follows_the_velocity_from_noise_to_the_image():
    known = Known()
    drawn = flow_matching.sample(known, 4, seed=7)
    torch.testing.assert_close(drawn, torch.full((40, 64), 0.25, dtype=torch.float64))
    assert known.times == [{0.0}, {0.25}, {0.5}, {0.75}]
    assert known.wanted == [(rendering, digit) for rendering in range(4) for digit in range(10)]


def test_more_sampling_steps_draw_something_else(trainer):
    module = trainer.state.objective.module
    few, again, more = (flow_matching.sample(module, steps, seed=0) for steps in (2, 2, 3))
    assert torch.equal(few, again) and not torch.equal(few, more)


def test_the_linear_layers_have_the_names_that_lora_is_aimed_at(trainer):
    names = {name for name, each in trainer.state.objective.module.named_modules() if isinstance(each, nn.Linear)}
    wanted = {f"self_attn.{name}" for name in "qkvo"} | {"ffn.0", "ffn.2"}
    assert {name.removeprefix("blocks.0.") for name in names if name.startswith("blocks.")} == wanted


def test_a_rank_without_samples_knows_the_metrics(trainer):
    with torch.no_grad():
        found = trainer.state.objective.evaluate(trainer.state.objective.module, batch_of(trainer, torch.arange(0)))
    assert {name: value.item() for name, value in found.items()} == {"velocity_error": 0, "velocity_error_of_zero": 0}


def test_it_learns():
    config = replace(CONFIG, steps=80, precision="float32", global_batch=64, ema=EmaConfig())
    config = replace(config, flow_matching=FlowMatchingConfig(width=16, depth=1), data=DataConfig())
    config = replace(config, optim=replace(config.optim, lr=1e-2))
    trainer = Trainer(config, World())
    for _ in trainer.steps():
        pass
    found = trainer.evaluate(trainer.data.validation)
    assert found["velocity_error"] < 0.75 * found["velocity_error_of_zero"]


def test_half_width_weights_draw_too(tmp_path):
    for half in ("frozen", "all"):
        config = replace(CONFIG, precision="bf16", half=half, lora=LoraConfig(rank=2), run_dir=str(tmp_path / half))
        Trainer(config, World()).run()
        assert len(list((tmp_path / half).glob("*.png"))) == 2


@pytest.mark.world_size(2)
def test_rank_zero_draws_after_each_evaluation_and_a_run_without_one_draws_at_its_end(world, tmp_path, monkeypatch):
    for every, names in ((2, ["samples-00000002.png", "samples-00000004.png"]), (0, ["samples-00000004.png"])):
        folder = tmp_path / f"every{every}"
        Trainer(replace(CONFIG, run_dir=str(folder), eval_every=every), World.current()).run()
        torch.distributed.barrier()
        assert sorted(path.name for path in folder.glob("*.png")) == names
