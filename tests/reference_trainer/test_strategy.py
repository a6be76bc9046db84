"""One process or several, replicas or not: what was not launched for a strategy is refused by its name."""

from __future__ import annotations

import pytest

from reference_trainer.cli import main
from reference_trainer.config import Config, ConfigError, DistConfig
from reference_trainer.launch import World, refuse_strategy

RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


def test_a_strategy_that_nobody_knows_is_refused():
    with pytest.raises(ConfigError, match=r"dist\.strategy is 'horovod'; it must be ddp, fsdp2 or dp"):
        DistConfig(strategy="horovod")


def test_several_ranks_of_what_is_one_process_are_refused_before_they_meet():
    # Nobody listens at that port: it would wait for the other rank.
    with pytest.raises(ConfigError, match=r"dist\.strategy is dp, which is one process, but 2 ranks were launched"):
        World.from_env(RANK, dist=DistConfig(strategy="dp"))


@pytest.mark.parametrize("gpus", [0, 1])
def test_data_parallel_with_fewer_than_two_gpus_is_refused(gpus):
    with pytest.raises(
        ConfigError, match=f"for two or more GPUs in one process, and this one has {gpus}; leave it out"
    ):
        refuse_strategy("dp", world_size=1, gpus=gpus)
    refuse_strategy("dp", world_size=1, gpus=2)
    refuse_strategy("ddp", world_size=1, gpus=gpus)
    refuse_strategy("ddp", world_size=2, gpus=gpus)


@pytest.mark.runtime
def test_data_parallel_without_gpus_ends_in_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--dist.strategy", "dp", "--device", "cpu"]) == 2
    assert capsys.readouterr().err == (
        "reference-trainer: error: dist.strategy is dp, which is for two or more GPUs in one process, and this one has "
        "0; leave it out\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.runtime
def test_the_plan_of_data_parallel_counts_gpus_where_a_batch_is_given_for_each():
    pytest.importorskip("torch")

    config = Config(batch_size=8, accumulation=2, epochs=1, dist=DistConfig(strategy="dp"))
    plan = config.plan(samples=640, world_size=1, gpus=4)
    ranks = Config(batch_size=8, accumulation=2, epochs=1).plan(samples=640, world_size=4, gpus=1)
    assert plan.effective_batch_size == ranks.effective_batch_size == 64
    assert plan.optimizer_steps == ranks.optimizer_steps == 10 and plan.world_size == 1
    whole = Config(global_batch=64, epochs=1, dist=DistConfig(strategy="dp"))
    assert whole.plan(samples=640, world_size=1, gpus=4).effective_batch_size == 64


@pytest.mark.runtime
def test_data_parallel_is_what_the_module_is_wrapped_in():
    torch = pytest.importorskip("torch")
    from reference_trainer.trainer import wrap

    assert isinstance(wrap(torch.nn.Linear(1, 1), World(), "dp"), torch.nn.DataParallel)
