"""Where a run meets an edge: what is logged of a step that was skipped, stopped or alone, and what is told of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch.overrides import TorchFunctionMode  # noqa: E402
from trainer_runs import EIGHT_STEPS as CONFIG  # noqa: E402

from reference_trainer.cli import main  # noqa: E402
from reference_trainer.config import Config, ConfigError, OptimConfig  # noqa: E402
from reference_trainer.core.step import StepResult  # noqa: E402
from reference_trainer.launch import World, alone_by_mistake  # noqa: E402
from reference_trainer.metrics import Interval, RunLog  # noqa: E402
from reference_trainer.monitor.reading import read_run  # noqa: E402
from reference_trainer.monitor.records import log_path, read_log  # noqa: E402
from reference_trainer.progress import shown  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

from .monitored import heartbeat, write  # noqa: E402

pytestmark = pytest.mark.runtime


class FromHost(TorchFunctionMode):
    """Counts calls that copy a number to a named device: on a GPU each waits for all that was queued there."""

    def __init__(self):
        self.found = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.tensor, torch.as_tensor) and (kwargs or {}).get("device") is not None:
            self.found.append((function.__name__, args))
        return function(*args, **(kwargs or {}))


@pytest.mark.world_size(2)
def test_a_step_copies_no_number_to_the_device(world):
    trainer = Trainer(CONFIG, World.current())
    steps = trainer.steps()
    next(steps)  # the first one sets up
    with FromHost() as calls:
        next(steps)
    assert calls.found == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_on_a_gpu_never_waits_for_it():
    trainer = Trainer(CONFIG, World(device=torch.device("cuda")))
    steps = trainer.steps()
    next(steps), next(steps)
    torch.cuda.set_sync_debug_mode("error")
    try:
        next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_logged_learning_rate_is_the_one_that_the_step_was_made_with(tmp_path):
    optim = OptimConfig(lr=0.8, schedule="linear", warmup_steps=2)
    Trainer(replace(CONFIG, run_dir=str(tmp_path), steps=4, log_every=1, optim=optim), World()).run()
    logged_rates = [each["lr"] for each in read_log(log_path(tmp_path, 0)) if each["kind"] == "interval"]
    assert logged_rates == pytest.approx([0.4, 0.8, 0.8, 0.4])


def test_after_a_stop_the_hash_is_told_with_the_step_that_it_is_of(tmp_path, capsys):
    class StopsAtOnce(Trainer):
        def shorten_timeouts(self):
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)

    summary = StopsAtOnce(replace(CONFIG, run_dir=str(tmp_path), log_every=1000), World()).run()
    assert 0 < summary.step < CONFIG.steps
    assert f"weights after step {summary.step}: sha256 " in capsys.readouterr().err


def test_a_skipped_step_alone_in_its_interval_has_no_metrics_and_is_told_so():
    number, interval = torch.tensor(torch.nan), Interval(World())
    interval.add(StepResult({"loss": number}, 4.0, {}, number, torch.tensor(False)))
    means = interval.close()
    assert (means.metrics, means.steps) == ({}, 1)
    assert shown(means.metrics) == "no step was taken"


@pytest.mark.parametrize(("objective", "first"), [("disentangle", 0.5), ("flow_matching", 0.9)])
def test_adam_averages_as_the_objective_asks(objective, first):
    made = Trainer(replace(CONFIG, objective=objective), World()).state.optimizer
    assert made.param_groups[0]["betas"] == (first, 0.999)
    other = replace(CONFIG, objective=objective, optim=OptimConfig(betas=(0.7, 0.9)))
    assert Trainer(other, World()).state.optimizer.param_groups[0]["betas"] == (0.7, 0.9)


def test_a_global_batch_of_one_is_a_line_where_club_needs_two(tmp_path, capsys):
    assert main(["train", "--batch-size", "1", "--steps", "1", "--run-dir", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert "needs a global batch of 2 or more" in told and "Traceback" not in told


def test_a_checkpoint_that_lacks_a_newer_field_is_read_and_one_that_lacks_more_is_refused_in_a_line():
    state, other = Trainer(CONFIG, World()).state, Trainer(CONFIG, World()).state
    saved = state.state_dict()
    other.load_state_dict({name: each for name, each in saved.items() if name != "evaluated"})
    assert other.evaluated == 0
    with pytest.raises(ConfigError, match="the checkpoint has no optimizer"):
        other.load_state_dict({name: each for name, each in saved.items() if name != "optimizer"})


def test_a_full_disk_is_told_in_one_line(tmp_path):
    folder = tmp_path / "run" / "metrics"
    folder.mkdir(parents=True)
    (folder / "rank00000.jsonl").symlink_to("/dev/full")
    plan = Trainer(CONFIG, World()).plan
    with pytest.raises(ConfigError, match=r"rank00000.jsonl cannot be written: No space left on device; free space"):
        RunLog(tmp_path / "run", Config(), plan, World())


def test_a_rank_that_lost_its_peer_tells_the_one_that_died(tmp_path):
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:12345"
    write(tmp_path / "run", heartbeat(state="failed", message=lost), heartbeat(1))
    seen = read_run(tmp_path / "run")
    assert (seen["state"], seen["message"]) == ("failed", "rank 1 died without a word")
    # One that has an error of its own knows better.
    write(tmp_path / "run", heartbeat(1, state="failed", message="KeyError: 'why'"))
    assert read_run(tmp_path / "run")["message"] == "rank 1: KeyError: 'why'"


def test_accelerate_that_starts_one_of_several_is_told():
    alone = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert "--multi_gpu" in alone_by_mistake(alone)
    assert alone_by_mistake({"ACCELERATE_MIXED_PRECISION": "no"}) == alone_by_mistake({"MASTER_PORT": "1"}) == ""
    assert alone_by_mistake(alone | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}) == ""


ONE_STEP = """
import sys
from reference_trainer.cli import main
assert main(["train", "--steps", "1", "--run-dir", sys.argv[1]]) == 0
print([name for name in ("sklearn", "matplotlib") if name in sys.modules])
"""


@pytest.mark.slow
def test_a_run_imports_neither_scikit_learn_nor_matplotlib(tmp_path):
    done = subprocess.run([sys.executable, "-c", ONE_STEP, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
