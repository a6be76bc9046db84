"""What a run leaves to be read: means over all samples of all ranks, lines that are there at once, progress."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from reference_trainer.config import CheckpointConfig, Config, ConfigError  # noqa: E402
from reference_trainer.core.plan import Plan  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.metrics import Interval, RunLog, run_folder  # noqa: E402
from reference_trainer.monitor.records import VERSION, RankLog, log_path, read_log  # noqa: E402

pytestmark = pytest.mark.runtime

PLAN = Plan.make(samples=100, world_size=1, batch_size=4, steps=40)


def started(config, world):
    """The log of a run in the folder that the configuration says."""
    return RunLog(run_folder(config, world), config, PLAN, world)


def result(sums, total, values=None, grad_norm=0.0):
    """A step's result, as ``train_step`` gives it."""
    values = {name: torch.tensor(value) for name, value in (values or {}).items()}
    return SimpleNamespace(sums=sums, total=total, values=values, grad_norm=torch.tensor(grad_norm), taken=None)


def shares(step, size):
    """The samples' losses of a step, on each rank: uneven, and none on some."""
    generator = torch.Generator().manual_seed(step)
    losses = torch.rand(5 + step % 3, generator=generator)
    cut = [int(each) for each in torch.linspace(0, len(losses), size).round()]
    return [*(losses[start:stop] for start, stop in pairwise(cut)), losses[cut[-1] :]]


@pytest.mark.world_size([1, 2, 3])
@pytest.mark.parametrize("steps", [1, 7, 150])
def test_means_are_over_all_samples_of_all_ranks_and_steps(world, steps):
    interval, everything = Interval(World.current()), []
    for step in range(steps):
        mine, whole = shares(step, world.size)[world.rank], torch.cat(shares(step, world.size))
        everything.append(whole)
        total = torch.tensor(float(len(whole)), dtype=torch.float64) if world.size > 1 else len(whole)
        sums = {"loss": mine.sum(), "large": (mine > 0.5).sum()}
        interval.add(result(sums, total, {"bound": float(step)}, grad_norm=2.0 * step))
    means, samples = interval.close(), torch.cat(everything).double()
    assert means.metrics == pytest.approx(
        {
            "loss": float(samples.mean()),
            "large": float((samples > 0.5).double().mean()),
            "bound": (steps - 1) / 2,
            "grad_norm": steps - 1,
        },
        rel=1e-6,
    )
    assert (means.steps, means.counted) == (steps, len(samples))
    assert means.seconds > 0
    assert not interval.results


@pytest.mark.world_size(2)
def test_an_interval_costs_one_message(world, monkeypatch):
    sent = []
    real = dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **kwargs: (sent.append(1), real(*args, **kwargs))[1])
    interval = Interval(World.current())
    for _ in range(100):
        interval.add(result({"loss": torch.tensor(1.0), "other": torch.tensor(2)}, torch.tensor(4.0), {"bound": 1.0}))
    assert sent == []
    interval.close()
    assert sent == [1]


class Counted(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_adding_a_step_runs_no_operator():
    interval = Interval(World())
    step = result({"loss": torch.tensor(1.0)}, 4, {"bound": 1.0})
    with Counted() as counted:
        for _ in range(10):
            interval.add(step)
    assert counted.count == 0


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path):
    log = RankLog(tmp_path, 3)
    log.write("event", 7, event="x", numbers=[1.5, math.nan, -math.inf], more={"a": math.inf})
    text = log_path(tmp_path, 3).read_text()
    assert text.endswith("\n") and log_path(tmp_path, 3).name == "rank00003.jsonl"
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (record,) = read_log(log.path)
    assert (record["version"], record["rank"], record["step"], record["kind"]) == (VERSION, 3, 7, "event")
    assert record["numbers"][0] == 1.5 and math.isnan(record["numbers"][1]) and record["numbers"][2] == -math.inf
    assert record["more"] == {"a": math.inf}
    log.close()


def test_a_last_line_that_a_kill_cut_off_is_left_out(tmp_path):
    log = RankLog(tmp_path, 0)
    log.write("event", 1, event="x")
    log.close()
    with open(log.path, "a") as file:
        file.write('{"version": 1, "ste')
    assert [record["step"] for record in read_log(log.path)] == [1]
    RankLog(tmp_path, 0).write("event", 2, event="resumed")
    assert [record["step"] for record in read_log(log.path)] == [1, 2]


@pytest.mark.world_size(2)
def test_ranks_write_the_same_means_into_one_folder(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with started(Config(), World.current()) as log:
        for step in range(2):
            log.add(result({"loss": torch.tensor(float(world.rank))}, torch.tensor(2.0)), lr=0.1 * (step + 1))
        assert log.interval(2) == {"loss": 0.5, "grad_norm": 0.0}
        log.evaluation(2, "test", {"loss": 0.25})
        log.event("odd", why="because")
    dist.barrier()
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "config.json").read_text())["objective"] == "disentangle"
    for rank in range(2):
        found = list(read_log(log_path(folder, rank)))
        kinds = [(each["kind"], each.get("event") or each.get("data")) for each in found]
        assert kinds == [
            ("event", "start"),
            ("event", "plan"),
            ("interval", None),
            ("evaluation", "test"),
            ("event", "odd"),
            ("event", "end"),
        ]
        interval = found[2]
        assert (interval["metrics"], interval["lr"], interval["steps"]) == ({"loss": 0.5, "grad_norm": 0.0}, 0.2, 2)
        assert interval["samples_per_second"] == pytest.approx(2 * PLAN.effective_batch_size / interval["seconds"])
        assert interval["memory_bytes"] > 1e6
        assert found[1]["optimizer_steps"] == 40


@pytest.mark.world_size(2)
def test_a_folder_that_cannot_be_made_is_refused_on_every_rank(world, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made: Not a directory"):
        started(Config(run_dir=str(tmp_path / "file" / "run")), World.current())
    (tmp_path / "old" / "metrics").mkdir(parents=True, exist_ok=True)
    with pytest.raises(ConfigError, match="holds a run already"):
        anew = CheckpointConfig(resume="none")
        started(Config(run_dir=str(tmp_path / "old"), checkpoint=anew), World.current())


def test_runs_of_one_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {started(Config(), World()).folder for _ in range(3)}
    assert len(folders) == 3


def test_an_exception_is_written_and_passed_on(tmp_path):
    with pytest.raises(KeyError), started(Config(run_dir=str(tmp_path / "run")), World()):
        raise KeyError("why")
    last = list(read_log(log_path(tmp_path / "run", 0)))[-1]
    assert (last["event"], last["type"], last["message"]) == ("error", "KeyError", "'why'")


def test_progress_is_a_line_an_interval_of_rank_zero(tmp_path, capsys):
    for rank in range(2):
        world = World(rank=rank)
        log = RunLog(tmp_path, Config(), PLAN, world)
        log.add(result({"loss": torch.tensor(5.0), "accuracy": torch.tensor(2.0)}, 4), lr=0.001)
        log.interval(20)
        log.evaluation(20, "test", {"loss": 2.5})
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert shown[0].startswith("step 20/40  loss 1.25  accuracy 0.5  grad_norm 0  lr 0.001  ")
    assert shown[1:] == ["step 20/40  test: loss 2.5"]
