"""A whole run: who writes what, what is read back, and that torchrun on two ranks is one process on two samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from validate_ddp.testing import assert_only_rank_zero_writes, assert_replicas_equal, assert_unwrapped  # noqa: E402

from reference_trainer.checkpoint import RunCheckpoints, latest  # noqa: E402
from reference_trainer.checkpoint.weights import fingerprint, read_part  # noqa: E402
from reference_trainer.cli import main  # noqa: E402
from reference_trainer.config import Config, DataConfig, EmaConfig  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.monitor.records import read_log  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

SHORT = Config(
    precision="float64",
    steps=6,
    global_batch=32,
    log_every=2,
    eval_every=3,
    data=DataConfig(train_samples=100, validation_samples=21),
    ema=EmaConfig(decay=0.5),
)


@pytest.mark.world_size(2)
def test_only_rank_zero_writes_the_weights_and_they_load_into_an_unwrapped_module(world, tmp_path):
    trainer = Trainer(SHORT, World.current())
    for _ in trainer.steps():
        pass
    with RunCheckpoints(tmp_path, SHORT, trainer.plan, World.current()) as checkpoints:
        with assert_only_rank_zero_writes(tmp_path):
            checkpoints.save(trainer.state)
        torch.distributed.barrier()
    saved = read_part(latest(tmp_path))
    assert_unwrapped({"model": saved}, model=trainer.state.objective.module)
    fresh = Trainer(SHORT, World()).state.objective.module
    fresh.load_state_dict(saved)
    assert_replicas_equal({"loaded": fresh.state_dict(), "average": read_part(latest(tmp_path), "ema")})
    assert [each.name for each in latest(tmp_path).parent.iterdir() if each.is_dir()] == ["step-00000006"]


@pytest.mark.world_size(2)
def test_a_run_logs_the_same_means_on_every_rank_at_the_steps_asked_for(world, tmp_path):
    from dataclasses import replace

    folder = tmp_path / "run"
    summary = Trainer(replace(SHORT, run_dir=str(folder)), World.current()).run()
    torch.distributed.barrier()
    assert summary.step == 6
    logs = [list(read_log(folder / "metrics" / f"rank0000{rank}.jsonl")) for rank in range(2)]
    for records in logs:
        assert [each["step"] for each in records if each["kind"] == "interval"] == [2, 4, 6]
        assert [(each["step"], each["data"]) for each in records if each["kind"] == "evaluation"] == [
            (3, "validation"),
            (6, "validation"),
            (6, "test"),
        ]
    means = [[each["metrics"] for each in records if "metrics" in each] for records in logs]
    assert means[0] == means[1]
    assert means[0][-1] == summary.test
    hashes = {each["sha256"] for records in logs for each in records if each.get("event") == "weights"}
    assert hashes == {fingerprint(read_part(latest(folder)))}
    notes = [each["message"] for each in logs[0] if each.get("event") == "note"]
    assert notes == [
        "time-out of collectives is 600 s, read back; it was 1800 s for the start (dist.train_timeout: 600 s)"
    ]
    config = json.loads((folder / "config.json").read_text())
    assert (config["steps"], config["ema"]["decay"]) == (6, 0.5)


def test_one_process_alone_has_no_process_group():
    trainer = Trainer(SHORT, World())
    assert next(trainer.steps()).sums and not torch.distributed.is_initialized()


WORDS = ["train", "--run-dir", "run", "--precision", "float64", "--steps", "20"]


def train_by_torchrun(folder):
    """The command on two ranks, as a user starts it."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    root = Path(__file__).resolve().parents[2]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "checks")]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*torchrun, "-m", "reference_trainer", *WORDS],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def left(folder):
    """The saved weights, and the log of rank zero."""
    return read_part(latest(folder / "run")), list(read_log(folder / "run" / "metrics" / "rank00000.jsonl"))


@pytest.mark.slow
def test_train_without_a_launcher_and_under_torchrun_gives_the_same_plan_and_weights(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    assert main(WORDS) == 0
    train_by_torchrun(tmp_path / "two")
    (alone, alone_log), (pair, pair_log) = left(tmp_path / "one"), left(tmp_path / "two")
    assert alone.keys() == pair.keys()
    for name, weight in alone.items():
        torch.testing.assert_close(pair[name], weight, rtol=0, atol=1e-12, msg=name)
    last, pair_last = (
        next(each for each in reversed(log) if each["kind"] == "evaluation") for log in (alone_log, pair_log)
    )
    assert pair_last["metrics"] == pytest.approx(last["metrics"], abs=1e-10)
