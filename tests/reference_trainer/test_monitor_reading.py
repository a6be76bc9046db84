"""What is made of heartbeats and logs: fresh, stale, ended, damaged, of an earlier start, or missing."""

from __future__ import annotations

import math

import pytest

from reference_trainer.core import ConfigError
from reference_trainer.monitor.reading import STALE_AFTER, read_run
from reference_trainer.monitor.records import ENDED, STATES, status_path

from .monitored import METRICS, heartbeat, logged, write


def test_a_run_under_way_is_what_its_ranks_said(tmp_path):
    evaluations = {"validation": {"step": 40, "metrics": {"loss": 0.25}}}
    found = read_run(write(tmp_path / "run", heartbeat(evaluations=evaluations), heartbeat(1)))
    assert (found["name"], found["state"], found["message"], found["problems"]) == ("run", "running", "", [])
    assert (found["step"], found["total"], found["percentage"], found["elapsed"]) == (50, 200, 25.0, 60.0)
    assert (found["metrics"], found["lr"], found["samples_per_second"]) == (METRICS, 0.001, 640.0)
    assert found["eta"] == pytest.approx(60.0, abs=5)
    assert found["evaluations"]["validation"] == {"step": 40, "metrics": {"loss": 0.25}}
    assert [(each["rank"], each["state"], each["pid"], each["usage"]["cpu_percent"]) for each in found["ranks"]] == [
        (0, "running", 100, 97.0),
        (1, "running", 101, 97.0),
    ]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("late", [False, True])
def test_stale_is_who_should_have_said_something_and_has_not(tmp_path, state, late):
    now, interval = 5000.0, 2.0
    last = now - STALE_AFTER * interval - (0.1 if late else -0.1)
    write(tmp_path, *(heartbeat(rank, time=last, interval=interval, state=state) for rank in range(2)))
    expected = "stale" if late and state not in ENDED else state
    found = read_run(tmp_path, now)
    assert found["state"] == expected
    assert (found["eta"] is None) == (expected not in ("starting", "running", "evaluating", "saving", "finished"))
    if expected == "stale":
        assert found["message"] == f"ranks 0, 1: no heartbeat for 6 s, it was {state}"


def test_the_time_that_is_left_goes_on_between_heartbeats(tmp_path):
    write(tmp_path, heartbeat(time=5000.0), heartbeat(1, time=5000.0))
    assert read_run(tmp_path, 5004.0)["eta"] == pytest.approx(56.0)
    assert read_run(tmp_path, 4990.0)["eta"] == pytest.approx(60.0)  # a clock that is behind


@pytest.mark.parametrize(
    ("state", "age", "expected"),
    [
        ("failed", 0.0, ("failed", "rank 1: KeyError: 'why'")),
        ("failed", 100.0, ("failed", "rank 1: KeyError: 'why'")),
        ("running", 100.0, ("stale", "rank 1: no heartbeat for 100 s, it was running")),
        ("evaluating", 1.0, ("running", "")),
    ],
)
def test_one_rank_that_failed_or_went_silent_counts_for_the_run(tmp_path, state, age, expected):
    message = "KeyError: 'why'" if state == "failed" else ""
    write(tmp_path, heartbeat(), heartbeat(1, state=state, age=age, message=message))
    found = read_run(tmp_path)
    assert (found["state"], found["message"]) == expected


def test_ranks_of_an_earlier_start_do_not_count(tmp_path):
    old = {"started": 10.0, "world_size": 4, "state": "failed", "age": 1e6}
    write(tmp_path, heartbeat(), *(heartbeat(rank, **old) for rank in (1, 2, 3)))
    found = read_run(tmp_path)
    assert found["state"] == "running"
    assert [(each["rank"], each["state"], each["message"]) for each in found["ranks"]] == [
        (0, "running", ""),
        (1, "unknown", "no heartbeat yet"),
    ]


def test_a_finished_run_is_never_stale_and_has_nothing_left(tmp_path):
    write(tmp_path, *(heartbeat(rank, state="finished", age=1e7, step=200, eta=None) for rank in range(2)))
    found = read_run(tmp_path)
    assert (found["state"], found["eta"], found["percentage"]) == ("finished", 0.0, 100.0)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"\xff\xfe", b"{}", b'{"version": 1, "rank": "x"}', b"[" * 100_000, b"9" * 10_000],
    ids=["empty", "half", "a list", "no text", "nothing in it", "wrong types", "deep", "a long number"],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_damaged_heartbeat_is_one_line_and_the_rest_is_shown(tmp_path, content, rank):
    logged(tmp_path, [3.0, 2.0])
    write(tmp_path, heartbeat(), heartbeat(1))
    path = status_path(tmp_path, rank)
    path.write_bytes(content)
    found = read_run(tmp_path)
    (problem,) = found["problems"]
    assert problem.startswith(f"{path} is damaged: ") and "\n" not in problem
    assert (found["step"], found["ranks"][rank]["state"], found["ranks"][1 - rank]["state"]) == (
        50,
        "unknown",
        "running",
    )


def test_numbers_that_are_not_finite_are_read_back(tmp_path):
    write(tmp_path, heartbeat(metrics={"loss": "nan"}, samples_per_second="inf"), heartbeat(1))
    found = read_run(tmp_path)
    assert math.isnan(found["metrics"]["loss"]) and found["samples_per_second"] == math.inf


def test_where_there_is_no_run_it_is_said_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match="is not there; give a run directory"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file"):
        read_run(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"holds no run: .* give the directory"):
        read_run(tmp_path)


def test_a_run_that_has_written_its_configuration_only_is_unknown(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = read_run(tmp_path)
    assert (found["state"], found["message"]) == ("unknown", "it has written no heartbeat")
    assert (found["step"], found["ranks"]) == (None, [])
