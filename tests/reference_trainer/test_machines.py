"""The start report: where each rank is, and in what ranks differ that should not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from reference_trainer import metrics  # noqa: E402
from reference_trainer.config import Config  # noqa: E402
from reference_trainer.core.plan import Plan  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.metrics import RunLog, place, told_places  # noqa: E402
from reference_trainer.monitor.records import log_path, read_log  # noqa: E402

pytestmark = pytest.mark.runtime

GIB = 2**30


def gpu(host="a", name="H100"):
    return {"host": host, "device": "cuda:0", "device_name": name, "memory_bytes": 80 * GIB}


def test_ranks_that_are_alike_share_a_line():
    assert told_places([gpu(), gpu(), gpu("b")]) == "rank 0, 1: a, H100, 80 GiB\nrank 2: b, H100, 80 GiB"


def test_mixed_devices_are_warned_about(monkeypatch, tmp_path, capfd):
    plan = Plan.make(samples=100, world_size=2, batch_size=4, steps=40)
    monkeypatch.setattr(metrics, "gather_objects", lambda mine, _: [gpu(), gpu(name="A100"), gpu()])
    RunLog(tmp_path, Config(), plan, World(size=3))
    told = "ranks have different devices, A100 and H100: each step waits for the slowest"
    assert told in capfd.readouterr().err
    assert [each["message"] for each in read_log(log_path(tmp_path, 0)) if each["event"] == "warning"] == [told]


def test_a_cpu_rank_tells_its_cores_and_the_memory_of_its_machine():
    found = place(World())
    assert found["device"] == "cpu" and "core" in found["device_name"] and found["memory_bytes"] > GIB // 4


@pytest.mark.world_size(2)
def test_a_run_of_several_ranks_writes_where_each_is(world, tmp_path, monkeypatch):
    plan = Plan.make(samples=100, world_size=world.size, batch_size=4, steps=40)
    with RunLog(tmp_path / "run", Config(), plan, World.current()) as log:
        log.tell("note", "said once")
        log.weights(6, "ab" * 32)
    start, *rest = read_log(log_path(tmp_path / "run", world.rank))
    assert (start["event"], start["rank"], start["device"]) == ("start", world.rank, "cpu")
    assert start["host"] and start["memory_bytes"] > 0 and "core" in start["device_name"]
    assert [(each["event"], each.get("sha256")) for each in rest][-3:] == [
        ("note", None),
        ("weights", "ab" * 32),
        ("end", None),
    ]


def test_places_are_shown_by_rank_zero_of_several_and_of_one_none(monkeypatch, tmp_path, capfd):
    plan = Plan.make(samples=100, world_size=2, batch_size=4, steps=40)
    for rank, size, count in ((0, 2, 1), (1, 2, 0), (0, 1, 0)):
        monkeypatch.setattr(metrics, "gather_objects", lambda mine, _: [mine, mine])
        world = World(rank=rank, size=size)
        (tmp_path / "run").mkdir(exist_ok=True)
        RunLog(tmp_path / "run", Config(), plan, world)
        assert capfd.readouterr().err.count("rank 0, 1: ") == count
