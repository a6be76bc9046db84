"""A model in shards (FSDP2) trains as one process does, and goes on with any number of ranks, sharded or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from trainer_runs import everything, same, saved_in, trained  # noqa: E402

from reference_trainer.checkpoint import export, latest  # noqa: E402
from reference_trainer.config import (  # noqa: E402
    CheckpointConfig,
    Config,
    DataConfig,
    DistConfig,
    EmaConfig,
    FlowMatchingConfig,
    LensConfig,
    OptimConfig,
)
from reference_trainer.finite import NonFiniteError  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

CONFIG = Config(
    precision="float64",
    steps=8,
    global_batch=24,
    accumulation=2,
    seed=3,
    activation_checkpointing=True,
    ema=EmaConfig(decay=0.9),
    optim=OptimConfig(clip=0.5),
    data=DataConfig(train_samples=40, validation_samples=9),
    dist=DistConfig(strategy="fsdp2"),
)
FLOW = replace(CONFIG, objective="flow_matching", flow_matching=FlowMatchingConfig(width=6, depth=2, heads=2))
LENS = replace(
    CONFIG,
    objective="lens",
    lens=LensConfig(backbone_hidden=(16, 12), backbone_steps=5, hidden=8, code=3, decoder_lr=0.5),
)


def run(config):
    """All that training moves, the norms of the gradient, and the metrics. Collective: every rank."""
    trainer = Trainer(config, World.current())
    norms = [result.grad_norm.item() for result in trainer.steps()]
    found = everything(trainer.state), norms, trainer.evaluate(trainer.data.validation)
    sharded = [type(each).__name__ == "DTensor" for each in trainer.state.tensors().values() if each.dim()]
    return *found, all(sharded)


def close(found, expected):
    """Weights, averages and moments, in float64."""
    for part in ("model", "ema", "moments"):
        assert found[part].keys() == expected[part].keys()
        for name, each in expected[part].items():
            torch.testing.assert_close(found[part][name], each, rtol=0, atol=1e-12)


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("config", [CONFIG, FLOW, LENS], ids=["disentangle", "flow_matching", "lens"])
def test_a_sharded_run_is_that_of_one_process(worlds, config, world_size):
    # Of 3 ranks some have no row of the smaller weights, and one no sample in the last batch of the evaluation.
    state, norms, metrics, _ = run(config)
    for found, its_norms, its_metrics, sharded in worlds.run(run, config, world_size=world_size):
        assert sharded or config is LENS  # whose scale is a buffer
        close(found, state)
        assert its_norms == pytest.approx(norms, abs=1e-12)
        assert its_metrics == pytest.approx(metrics, abs=1e-12)


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), pytest.param((2, 3), marks=pytest.mark.slow)])
def test_a_sharded_run_goes_on_with_another_number_of_ranks(worlds, tmp_path, sizes):
    whole = trained(FLOW, tmp_path / "whole", 8)
    for size, until in zip(sizes, (4, 8), strict=True):
        last = worlds.run(trained, FLOW, tmp_path / "parts", until, world_size=size)[0]
        files = {each.name[:11] for each in latest(tmp_path / "parts").glob("shard-*")}
        assert files == {f"shard-{rank + 1:05}" for rank in range(size)}
    close(last, whole)
    close(saved_in(latest(tmp_path / "parts")), whole)
    export(tmp_path / "parts", tmp_path / "weights.safetensors")  # whole, by one process


@pytest.mark.slow
def test_a_run_changes_from_replicas_to_shards_and_back(worlds, tmp_path):
    replicas, whole = replace(FLOW, dist=DistConfig()), trained(FLOW, tmp_path / "whole", 8)
    for config, until in ((replicas, 3), (FLOW, 6), (replicas, 8)):
        last = worlds.run(trained, config, tmp_path / "parts", until, world_size=2)[0]
    close(last, whole)


@pytest.mark.slow
@pytest.mark.world_size(2)
def test_a_resumed_sharded_run_is_the_uninterrupted_one_bit_by_bit(world, tmp_path):
    config = replace(FLOW, precision="float32", checkpoint=CheckpointConfig(background=True))
    whole = trained(config, tmp_path / "whole", 8)
    for until in (3, 8):
        last = trained(config, tmp_path / "parts", until)
    assert same(last, whole)


def spoiled(policy, kind):
    """Trains with one sample of rank 1's that is not a number, or whose gradient is not, in the third step."""
    world = World.current()
    trainer = Trainer(replace(FLOW, nonfinite=policy), world)
    objective, told = trainer.state.objective, []
    original, trainer.gate.tell = objective.loss, told.append

    def loss(forward, batch):
        found = original(forward, batch)
        if batch.step != 2 or world.rank != 1:
            return found
        # The root of nought: its value is finite, its gradient is not.
        return found._replace(
            sum=found.sum + (torch.nan if kind == "loss" else (found.sum - found.sum.detach()).sqrt())
        )

    objective.loss = loss
    try:
        for _ in trainer.steps():
            pass
    except NonFiniteError as error:
        told.append(str(error))
    finite = all(
        each.isfinite().all() for part in ("model", "ema") for each in everything(trainer.state)[part].values()
    )
    return told, finite, trainer.state.step, trainer.gate.skipped


@pytest.mark.parametrize("kind", [pytest.param("loss", marks=pytest.mark.slow), "gradient"])
def test_a_gradient_that_is_not_finite_withholds_the_step_of_all_shards_and_is_named(worlds, kind):
    for told, finite, step, skipped in worlds.run(spoiled, "skip", kind, world_size=2):
        (line,) = told
        named = {"loss": "on rank 1 of 2 the loss is ", "gradient": "the averaged gradient of `"}
        assert line.startswith(f"step 3: {named[kind]}")
        assert finite and (step, skipped) == (8, 1)
    for told, finite, step, _ in worlds.run(spoiled, "stop", kind, world_size=2):
        assert "the step was not taken" in told[0] and finite and step == 2


@pytest.mark.slow
@pytest.mark.world_size(2)
def test_a_whole_run_in_shards_saves_and_evaluates(world, tmp_path):
    config = replace(FLOW, run_dir=str(tmp_path), eval_every=4, checkpoint=CheckpointConfig(save_every=3, keep=9))
    alone = Trainer(replace(config, run_dir=str(tmp_path / f"alone{world.rank}")), World()).run()
    summary = Trainer(config, World.current()).run()
    torch.distributed.barrier()
    assert summary.step == 8 and summary.test == pytest.approx(alone.test, abs=1e-12)
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*")) == [
        *("step-00000003", "step-00000006", "step-00000008")
    ]


@pytest.mark.slow
@pytest.mark.world_size(2)
def test_half_width_and_a_scaled_loss_go_with_shards(world):
    for changes in ({"precision": "fp16"}, {"precision": "bf16", "half": "all"}):
        trainer = Trainer(replace(FLOW, **changes), World.current())
        for _ in trainer.steps():
            pass
        assert all(isinstance(each, nn.Parameter) for each in trainer.state.objective.module.parameters())
        assert trainer.state.scheduler.last_epoch > 0
