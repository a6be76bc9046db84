"""The start report: where each rank is, and in what ranks differ that should not."""

from __future__ import annotations

import dataclasses
import io

import pytest

torch = pytest.importorskip("torch")
from reference_trainer import metrics  # noqa: E402
from reference_trainer.config import Config  # noqa: E402
from reference_trainer.core.plan import Plan  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.metrics import RunLog  # noqa: E402
from reference_trainer.progress import console  # noqa: E402
from reference_trainer.records import log_path, read_log  # noqa: E402
from reference_trainer.rendezvous import Place, mismatches, place, table_of_places  # noqa: E402

pytestmark = pytest.mark.runtime

GIB = 2**30


def gpu(rank, host="a", name="H100"):
    return Place(rank, host, f"cuda:{rank % 2}", name, 80 * GIB)


def shown(places):
    out = io.StringIO()
    console(out).print(table_of_places(places))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_ranks_that_are_alike_share_a_row():
    rows = shown([gpu(0), gpu(1), gpu(2, "b"), gpu(3, "b")])
    assert rows == ["ranks 0 to 1 a cuda:0 to 1 H100 80 GiB", "ranks 2 to 3 b cuda:0 to 1 H100 80 GiB"]
    assert shown([gpu(0), gpu(1, name="A100")]) == ["rank 0 a cuda:0 H100 80 GiB", "rank 1 a cuda:1 A100 80 GiB"]


def test_ranks_that_are_alike_are_not_warned_about():
    assert list(mismatches([gpu(0), gpu(1), gpu(2, "b")])) == []


def test_mixed_devices_are_warned_about_with_the_ranks_that_have_them():
    (line,) = mismatches([gpu(0), gpu(1, name="A100"), gpu(2)])
    assert line == "ranks have different devices: H100 on ranks 0, 2; A100 on rank 1; each step waits for the slowest"


def test_a_cpu_rank_tells_its_cores_and_the_memory_of_its_machine():
    found = place(World())
    assert (found.rank, found.device) == (0, "cpu")
    assert "core" in found.device_name and found.memory_bytes > GIB // 4


@pytest.mark.world_size(2)
def test_a_run_of_several_ranks_writes_where_each_is(world, tmp_path, monkeypatch):
    plan = Plan.make(samples=100, world_size=world.size, batch_size=4, steps=40)
    with RunLog.start(Config(run_dir=str(tmp_path / "run")), plan, World.current()) as log:
        log.note("said once")
        log.weights(6, "ab" * 32)
    start, *rest = read_log(log_path(tmp_path / "run", world.rank))
    assert (start["event"], start["rank"], start["device"]) == ("start", world.rank, "cpu")
    assert start["host"] and start["memory_bytes"] > 0 and "core" in start["device_name"]
    assert [(each["event"], each.get("sha256")) for each in rest][-3:] == [
        ("note", None),
        ("weights", "ab" * 32),
        ("end", None),
    ]


def test_one_table_is_shown_by_rank_zero_of_several_and_none_of_one(monkeypatch, tmp_path, capfd):
    plan = Plan.make(samples=100, world_size=2, batch_size=4, steps=40)
    for rank, size, count in ((0, 2, 1), (1, 2, 0), (0, 1, 0)):
        monkeypatch.setattr(metrics, "gather_objects", lambda mine, _: [mine, dataclasses.replace(mine, rank=1)])
        world = World(rank=rank, size=size)
        (tmp_path / "run").mkdir(exist_ok=True)
        RunLog.start(Config(), plan, world, folder=tmp_path / "run")
        assert capfd.readouterr().err.count("ranks 0 to 1") == count
