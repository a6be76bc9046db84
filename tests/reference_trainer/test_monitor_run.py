"""What is shown of real runs on ranks: the values in their logs, and how they ended, also by force."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from reference_trainer.config import CheckpointConfig, Config, DataConfig, LogConfig  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.monitor.reading import STALE_AFTER, read_run  # noqa: E402
from reference_trainer.monitor.records import Heartbeat, log_path, read_log, status_path  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

SHORT = Config(
    steps=6,
    global_batch=32,
    log_every=2,
    eval_every=3,
    data=DataConfig(train_samples=100, validation_samples=21),
    checkpoint=CheckpointConfig(save_every=3),
    log=LogConfig(heartbeat=1.0),
)


def shown_and_logged(folder: Path) -> None:
    """Asserts that what is shown is what is in the log."""
    found, records = read_run(folder), list(read_log(log_path(folder, 0)))
    intervals = [each for each in records if each["kind"] == "interval"]
    last = intervals[-1]
    assert (found["metrics"], found["lr"], found["samples_per_second"]) == (
        last["metrics"],
        last["lr"],
        last["samples_per_second"],
    )
    evaluations = {each["data"]: each for each in records if each["kind"] == "evaluation"}
    assert found["evaluations"] == {
        data: {"step": each["step"], "metrics": each["metrics"]} for data, each in evaluations.items()
    }
    assert set(found["evaluations"]) == {"validation", "test"}
    assert [each["step"] for each in intervals] == [2, 4, 6]


@pytest.mark.world_size(2)
def test_a_finished_run_shows_the_values_in_its_log(world, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    Trainer(replace(SHORT, run_dir=str(folder)), World.current()).run()
    torch.distributed.barrier()
    found = read_run(folder)
    assert (found["state"], found["step"], found["total"], found["eta"], found["world_size"]) == (
        "finished",
        6,
        6,
        0.0,
        2,
    )
    assert [(each["rank"], each["state"], each["step"]) for each in found["ranks"]] == [
        (0, "finished", 6),
        (1, "finished", 6),
    ]
    assert found["ranks"][world.rank]["pid"] == os.getpid()
    starts = {json.loads(status_path(folder, rank).read_text())["started"] for rank in range(2)}
    assert len(starts) == 1
    shown_and_logged(folder)


def test_a_run_says_what_it_is_doing(tmp_path, monkeypatch):
    states: list[str] = []
    say, end = Heartbeat.say, Heartbeat.end

    def heard(state: str | None) -> None:
        if state and states[-1:] != [state]:
            states.append(state)

    monkeypatch.setattr(Heartbeat, "say", lambda self, **fields: (heard(fields.get("state")), say(self, **fields))[1])
    monkeypatch.setattr(Heartbeat, "end", lambda self, state, *why: (heard(state), end(self, state, *why))[1])
    Trainer(replace(SHORT, run_dir=str(tmp_path / "run")), World()).run()
    third = ["running", "evaluating", "running", "saving"]
    assert states == [*third, *third, "running", "evaluating", "running", "finished"]


INTERVAL = 0.5


def test_a_run_whose_ranks_are_killed_is_stale_within_three_heartbeats(start_job):
    job = start_job(2, kind="kill", rank=-1, pace=0.02, steps=100_000, step=20, heartbeat=INTERVAL).end()
    ended = time.time()
    assert job.codes == [-signal.SIGKILL] * 2
    folder = job.folder / "run"
    found = read_run(folder, ended + STALE_AFTER * INTERVAL)
    assert (found["state"], found["eta"], found["total"]) == ("stale", None, 100_000)
    assert found["message"].startswith("ranks 0, 1: no heartbeat for ") and found["message"].endswith(
        ", it was running"
    )
    # With the clock of its last heartbeat nobody can know.
    last = json.loads(status_path(folder, 0).read_text())["time"]
    assert read_run(folder, last)["state"] == "running"


def test_a_run_in_which_a_rank_fails_has_failed_and_says_of_what(start_job):
    job = start_job(2, kind="raise", rank=1, step=3).end()
    found = read_run(job.folder / "run")
    assert found["state"] == "failed"
    assert "ZeroDivisionError: planted in forward" in found["ranks"][1]["message"]
    assert found["message"].startswith("rank")


@pytest.mark.parametrize("place", ["forward", "collective"])
def test_a_run_in_which_a_rank_is_killed_names_that_one_and_not_who_noticed(start_job, place):
    job = start_job(2, kind="kill", rank=1, step=3, place=place).end()
    found = read_run(job.folder / "run")
    assert (found["state"], found["message"]) == ("failed", "rank 1 died without a word")


def test_a_run_that_is_told_to_stop_is_stopped_and_not_stale(start_job):
    running = start_job(2, pace=0.02, steps=100_000, heartbeat=INTERVAL)
    running.wait_for("step 5")
    for pid in running.pids:
        os.kill(pid, signal.SIGTERM)
    job = running.end()
    found = read_run(job.folder / "run", time.time() + 3600)
    assert found["state"] == "stopped" and "of 100000 on SIGTERM" in found["message"]
    assert found["percentage"] == pytest.approx(100 * found["step"] / 100_000)
