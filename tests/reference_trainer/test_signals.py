"""SIGTERM, SIGUSR1 and Ctrl-C end a run at a step that all ranks agree on, with everything saved, whatever it did."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from trainer_runs import saved_in  # noqa: E402

from reference_trainer.checkpoint import latest  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.monitor.records import status_path  # noqa: E402
from reference_trainer.signals import AGAIN, STOP_SIGNALS, Stop  # noqa: E402

pytestmark = [pytest.mark.runtime, pytest.mark.slow, pytest.mark.timeout(600)]

LONG = {"steps": 2000, "pace": 0.02}
"""Settings of a job that does not end by itself within a test."""


def stopped_at(ended):
    """The step at which every rank has ended, from what it printed at its end."""
    steps = re.findall(r"^rank \d ended at step (\d+) (\w+)$", ended.output, re.MULTILINE)
    assert len(set(steps)) == 1, ended.output
    return int(steps[0][0]), steps[0][1]


def steps_begun(ended):
    """How many steps rank zero has begun."""
    return sum(1 for each in ended.folder.glob("step *"))


def saved_steps(ended):
    """The steps of which there are checkpoints; each must be whole."""
    found = sorted((ended.folder / "run" / "checkpoints").glob("step-*"))
    return [saved_in(path)["step"] for path in found]


@pytest.mark.parametrize(("number", "told"), [(signal.SIGTERM, [0]), (signal.SIGUSR1, [1]), (signal.SIGINT, [0, 1])])
def test_a_signal_to_any_rank_stops_all_within_two_steps(start_job, number, told):
    running = start_job(2, **LONG)
    running.wait_for("step 3")
    begun = sum(1 for each in running.folder.glob("step *"))
    for rank in told:
        os.kill(running.pids[rank], number)
    ended = running.end()
    assert ended.codes == [0, 0], ended.output
    step, name = stopped_at(ended)
    assert name == number.name and begun <= step <= begun + 2 and steps_begun(ended) == step
    assert f"stopped at step {step} of 2000 on {number.name}" in ended.output
    assert saved_steps(ended) == [step]


def test_in_evaluation_ranks_leave_the_rest_of_it_out(start_job):
    # Eight batches of 0.3 s: without leaving out it would take the better part of three seconds.
    running = start_job(2, steps=2000, eval_every=2, eval_batch=2, pace=0.3)
    running.wait_for("evaluation")
    for pid in running.pids:
        os.kill(pid, signal.SIGTERM)
    ended = running.end()
    assert ended.codes == [0, 0] and stopped_at(ended) == (2, "SIGTERM"), ended.output
    assert "validation:" not in ended.output
    # What was left out is made up for, before the first step.
    again = start_job(2, folder=ended.folder, steps=3, eval_every=2).end()
    assert again.codes == [0, 0] and again.output.count("step 2/3  validation:") == 1, again.output


def test_ranks_that_were_not_told_finish_their_share_of_an_evaluation(start_job):
    running = start_job(3, steps=2000, eval_every=2, eval_batch=2, pace=0.1)
    running.wait_for("evaluation")
    os.kill(running.pids[2], signal.SIGTERM)
    ended = running.end()
    assert ended.codes == [0, 0, 0] and stopped_at(ended) == (2, "SIGTERM"), ended.output


def test_a_second_signal_and_one_while_saving_change_nothing(start_job):
    running = start_job(2, **LONG | {"pace": 0.2})
    running.wait_for("step 1")
    os.kill(running.pids[0], signal.SIGTERM)
    running.wait_for("saving")
    for _ in range(3):
        for pid in running.pids:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGUSR1)
    ended = running.end()
    assert ended.codes == [0, 0], ended.output
    step, name = stopped_at(ended)
    assert name == "SIGTERM" and saved_steps(ended) == [step]
    assert "rank 0: SIGTERM: is stopping already" in ended.output


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])  # torchrun makes the one of the other
def test_a_second_ctrl_c_ends_at_once_whatever_is_being_done(start_job, second):
    running = start_job(1, **LONG | {"pace": 30.0})
    running.wait_for("step 0")
    os.kill(running.pids[0], signal.SIGINT)
    time.sleep(0.2)
    os.kill(running.pids[0], signal.SIGINT)  # the same one, passed on
    time.sleep(AGAIN + 0.2)
    os.kill(running.pids[0], second)
    ended = running.end()
    assert ended.codes == [-second] and not saved_steps(ended), ended.output
    told = [line for line in ended.output.splitlines() if line.startswith("rank 0: SIG")]
    assert "SIGINT: will stop after a checkpoint" in told[0] and told[0].endswith("once more ends at once")
    assert "is stopping already" in told[-2] and told[-1] == f"rank 0: {second.name}: ends at once, unsaved"


def test_loader_workers_outlive_the_signal_that_is_sent_to_all_processes(start_job):
    running = start_job(2, workers=2, **LONG)
    running.wait_for("step 3")
    for pid in running.pids:
        os.killpg(pid, signal.SIGTERM)  # the rank and its workers
    ended = running.end()
    assert ended.codes == [0, 0] and not ended.left, ended.output
    stopped_at(ended)


def test_loader_workers_do_not_outlive_a_killed_rank(start_job):
    running = start_job(2, workers=2, deadline=60, **LONG)
    running.wait_for("step 3")
    for pid in running.pids:
        os.kill(pid, signal.SIGKILL)
    assert not running.end().left


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_under_torchrun_a_signal_to_the_agent_is_a_clean_end_of_all_ranks(start_torchrun, number):
    running = start_torchrun(2, **LONG)
    running.wait_for("step 3")
    os.kill(running.pids[0], number)
    ended = running.end()
    assert not ended.left and stopped_at(ended)[1] == number.name, ended.output
    assert f"of 2000 on {number.name}; the same command with run_dir" in ended.output
    # torchrun reports its own signal as a failure, whatever its ranks did.
    assert ended.codes == [1], ended.output


@pytest.mark.soak
def test_under_torchrun_a_second_ctrl_c_ends_all_ranks_at_once(start_torchrun):
    running = start_torchrun(2, **LONG | {"pace": 5.0})
    running.wait_for("step 1")
    os.kill(running.pids[0], signal.SIGINT)
    time.sleep(AGAIN + 0.5)
    since = time.monotonic()
    os.kill(running.pids[0], signal.SIGINT)
    ended = running.end()
    assert not ended.left and ended.ended - since < 20, ended.output
    assert ended.output.count("SIGTERM: ends at once, unsaved") == 2, ended.output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_command_saves_says_how_to_go_on_and_ends_with_130_after_ctrl_c(tmp_path, number, code):
    run = tmp_path / "run"
    words = ["--steps", "100000", "--run-dir", str(run), "--log.heartbeat", "0.02", "--checkpoint.save-every", "0"]
    command = [sys.executable, "-m", "reference_trainer", "train", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        path, until = status_path(run, 0), time.monotonic() + 200
        while not (path.exists() and json.loads(path.read_bytes())["state"] == "running"):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        told = process.communicate(timeout=200)[1]
    assert process.returncode == code, told
    assert f"on {number.name}; the same command with run_dir {run} goes on from there" in told
    assert "Traceback" not in told and saved_in(latest(run))["step"] > 0


# In this process.


def test_handlers_are_as_before_afterwards():
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    with Stop(World(), timeout=10) as stop:
        assert stop.agree() is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.received is signal.SIGUSR1 and stop.agree() is signal.SIGUSR1
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def test_a_job_that_was_started_to_ignore_ctrl_c_goes_on_to():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stop(World(), timeout=10) as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.agree() is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_came_after_a_step_had_begun_is_for_the_next():
    with Stop(World(), timeout=10) as stop:
        stop.begin_step()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.end_step() is None
        assert stop.agree() is signal.SIGTERM


def told(world, of):
    """What a rank hears when some were sent a signal."""
    with Stop(World.current(), timeout=30) as stop:
        if world.rank in of:
            os.kill(os.getpid(), of[world.rank])
        return stop.agree()


@pytest.mark.world_size(3)
def test_all_ranks_agree_on_one_signal(world):
    assert told(world, {}) is None
    assert told(world, {1: signal.SIGUSR1}) is signal.SIGUSR1
    assert told(world, {0: signal.SIGUSR1, 2: signal.SIGTERM}) is signal.SIGTERM
