"""The heartbeats of a rank: whole at any moment, there while a step is long, and never a reason for a run to end."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from reference_trainer.config import ConfigError, LogConfig
from reference_trainer.monitor.reading import read_run
from reference_trainer.monitor.records import Heartbeat, status_path, usage

CPU = SimpleNamespace(type="cpu")
WORLD = SimpleNamespace(rank=0, size=1, device=CPU, launcher="single")


def beating(folder, *, interval=0.02, **changes):
    options = {"started": 1.0, "total": 10} | changes
    return Heartbeat(folder, WORLD, interval, **options)


def wait_for(condition):
    """Returns the first true value; a busy machine may take its time."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


def said(folder):
    path = status_path(folder, 0)
    return json.loads(path.read_text()) if path.exists() else {}


def test_it_goes_on_while_a_step_is_long_and_ends_with_the_run(tmp_path):
    beat = beating(tmp_path)
    beat.start()
    times = set()
    wait_for(lambda: times.add(said(tmp_path).get("time")) or len(times) > 5)  # this thread does nothing else
    assert said(tmp_path)["state"] == "starting"
    beat.end("finished")
    last = said(tmp_path)
    assert (last["state"], last["eta"]) == ("finished", None)
    wait_for(lambda: not any(each.name == "heartbeat" for each in threading.enumerate()))


def test_the_last_word_is_there_when_end_returns_however_long_the_interval(tmp_path):
    beat = beating(tmp_path, interval=3600)
    beat.start()
    beat.end("failed", "KeyError: 'why'")
    found = read_run(tmp_path)
    assert (found["state"], found["message"]) == ("failed", "KeyError: 'why'")


def test_each_state_and_value_is_written(tmp_path):
    beat = beating(tmp_path, interval=0.002)
    beat.start()
    beat.advance()
    wait_for(lambda: said(tmp_path).get("state") == "running")
    beat.advance()
    with beat.doing("evaluating"):
        wait_for(lambda: said(tmp_path)["state"] == "evaluating")
    beat.say(evaluations={"validation": {"step": 2, "metrics": {"loss": 0.5}}})
    beat.say(metrics={"loss": float("nan")}, lr=0.1, samples_per_second=9.0)
    found = wait_for(lambda: (each := said(tmp_path))["lr"] and each)
    assert (found["state"], found["step"], found["metrics"]) == ("running", 2, {"loss": "nan"})
    assert found["evaluations"] == {"validation": {"step": 2, "metrics": {"loss": 0.5}}}
    assert found["step_seconds"] > 0 and found["eta"] > 0
    beat.end("finished")


def test_the_time_of_a_run_that_goes_on_is_that_of_all_its_starts(tmp_path):
    for step, least, most in ((0, 0, 60), (3, 1000, 1060), (0, 0, 60)):  # the last begins anew
        beat = beating(tmp_path, interval=0, step=step)
        beat.start()
        found = said(tmp_path)
        assert least <= found["elapsed"] < most
        status_path(tmp_path, 0).write_text(json.dumps(found | {"elapsed": 1000.0}))
    status_path(tmp_path, 0).write_text("{")
    assert beating(tmp_path, interval=0, step=3).said["state"] == "starting"


def test_what_failed_within_an_evaluation_says_so(tmp_path):
    beat = beating(tmp_path, interval=0)
    with pytest.raises(KeyError), beat.doing("evaluating"):
        raise KeyError
    assert beat.said["state"] == "evaluating"


def test_a_reader_finds_a_whole_file_at_any_moment(tmp_path):
    beat = beating(tmp_path, interval=0.0005)
    beat.start()
    wait_for(lambda: said(tmp_path))
    for _ in range(500):
        assert said(tmp_path)["rank"] == 0
    beat.end("finished")
    assert [each.name for each in (tmp_path / "status").iterdir()] == ["rank00000.json"]


def test_a_disk_that_refuses_is_told_once_and_the_run_goes_on(tmp_path, capfd):
    beat = beating(tmp_path, interval=0.002)
    (tmp_path / "status").mkdir()
    status_path(tmp_path, 0).mkdir()  # no file can take its place
    beat.start()
    beat.advance()
    time.sleep(0.05)
    status_path(tmp_path, 0).rmdir()
    wait_for(lambda: said(tmp_path).get("step") == 1)
    beat.end("finished")
    assert capfd.readouterr().err.count("cannot be written, so this rank looks stale: ") == 1


def test_a_heartbeat_of_0_is_written_at_the_start_and_at_the_end_and_is_never_stale(tmp_path):
    beat = beating(tmp_path, interval=0)
    beat.start()
    beat.advance()
    assert (said(tmp_path)["state"], said(tmp_path)["step"]) == ("starting", 0)
    assert read_run(tmp_path, time.time() + 1e6)["state"] == "starting"
    beat.end("finished")
    assert (said(tmp_path)["state"], said(tmp_path)["step"]) == ("finished", 1)
    wait_for(lambda: not any(each.name == "heartbeat" for each in threading.enumerate()))
    with pytest.raises(ConfigError, match=r"log\.heartbeat is -1; it must not be negative"):
        LogConfig(heartbeat=-1)


def test_usage_of_a_process_is_that_of_the_system(tmp_path):
    process = psutil.Process()
    process.cpu_percent()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    found = usage(process, CPU)
    assert found["cpu_percent"] > 0
    assert 1e6 < found["memory_bytes"] < 1e12
    assert (found["device_percent"], found["device_memory_bytes"], found["device_total_bytes"]) == (None, None, None)
    ballast = bytearray(b"x" * (64 << 20))
    assert usage(process, CPU)["memory_bytes"] - found["memory_bytes"] > 0.9 * len(ballast)


@pytest.mark.parametrize(
    ("nvml", "percent"), [("there", 37), ("refuses", None), ("missing", None)], ids=lambda each: str(each)
)
def test_usage_of_a_gpu_is_asked_of_the_driver_where_it_can_be(monkeypatch, nvml, percent):
    # There is no GPU here: torch and the driver's library are stand-ins.
    pynvml = ModuleType("pynvml")
    pynvml.NVMLError = type("NVMLError", (Exception,), {})

    def utilization(device):
        if nvml == "missing":
            raise ModuleNotFoundError("pynvml")
        if nvml == "refuses":
            raise pynvml.NVMLError("not supported")
        return 37

    cuda = SimpleNamespace(
        utilization=utilization,
        memory_reserved=lambda device: 1 << 30,
        get_device_properties=lambda device: SimpleNamespace(total_memory=80 << 30),
    )
    monkeypatch.setitem(sys.modules, "pynvml", None if nvml == "missing" else pynvml)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    found = usage(psutil.Process(), SimpleNamespace(type="cuda", index=0))
    assert found["device_percent"] == percent
    assert (found["device_memory_bytes"], found["device_total_bytes"]) == (1 << 30, 80 << 30)
