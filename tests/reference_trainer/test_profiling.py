"""The profiler's window: a trace a rank, one table, nothing else changed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from reference_trainer.checkpoint import latest  # noqa: E402
from reference_trainer.checkpoint.weights import read_part  # noqa: E402
from reference_trainer.config import Config, DataConfig, ProfileConfig  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.observe import profiled  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

CONFIG = Config(
    steps=5,
    global_batch=32,
    data=DataConfig(train_samples=100, validation_samples=10),
    profile=ProfileConfig(start=2, steps=2),
)


def ran(config, folder):
    """A whole run here; what it printed."""
    import contextlib
    import io

    world, said = World.current(), io.StringIO()
    with contextlib.redirect_stderr(said):
        Trainer(replace(config, run_dir=str(folder)), world).run()
    return said.getvalue()


def test_each_rank_leaves_a_trace_of_these_steps_and_rank_zero_prints_one_table(worlds, tmp_path):
    said = worlds.run(ran, CONFIG, tmp_path / "profiled", world_size=2)
    assert sorted(each.name for each in (tmp_path / "profiled" / "profile").iterdir()) == [
        "rank00000.json",
        "rank00001.json",
    ]
    for rank in range(2):
        trace = json.loads((tmp_path / "profiled" / "profile" / f"rank0000{rank}.json").read_text())
        names = [event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"]
        # Two steps, each with the optimizer once.
        assert sum(name.startswith("Optimizer.step#AdamW") for name in names) == 2
        assert "DistributedDataParallel.forward" in names
    assert [text.count("Self CPU time total") for text in said] == [1, 0]
    assert f"all of it in {tmp_path / 'profiled' / 'profile' / 'rank00000.json'}" in said[0].replace("\n", "")

    said = worlds.run(ran, replace(CONFIG, profile=ProfileConfig()), tmp_path / "plain", world_size=2)
    assert not (tmp_path / "plain" / "profile").exists() and "CPU time" not in said[0]
    with_it, without = (read_part(latest(tmp_path / name)) for name in ("profiled", "plain"))
    assert all(torch.equal(with_it[name], weight) for name, weight in without.items())


@pytest.mark.parametrize(
    ("start", "steps", "made", "traced"), [(0, 2, 5, 2), (3, 1, 5, 1), (2, 9, 4, 2), (5, 2, 4, 0), (2, 0, 4, 0)]
)
def test_the_window_is_of_these_steps_wherever_the_run_ends(tmp_path, start, steps, made, traced):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profiled(ProfileConfig(start, steps), tmp_path, World(), tell=print) as step:
        for _ in range(made):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            step()
    path = tmp_path / "rank00000.json"
    events = json.loads(path.read_text())["traceEvents"] if path.exists() else []
    assert sum(str(each.get("name")).startswith("Optimizer.step#SGD") for each in events) == traced
