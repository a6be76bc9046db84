"""Scalars for TensorBoard: those of the log, by rank zero alone, and a line where the package is missing."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")
from reference_trainer.config import Config, ConfigError, DataConfig, LogConfig  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.records import log_path, read_log  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime


def config(folder, *, wanted=True):
    return Config(
        run_dir=str(folder),
        steps=4,
        global_batch=32,
        log_every=2,
        eval_every=4,
        data=DataConfig(train_samples=100, validation_samples=20),
        log=LogConfig(heartbeat=0, tensorboard=wanted),
    )


def expected(folder):
    """(name, step): value, of all numbers in rank zero's log."""
    found = {}
    for each in read_log(log_path(folder, 0)):
        if each["kind"] == "interval":
            beside = {name: each[name] for name in ("lr", "samples_per_second")}
            found |= {
                (f"training/{name}", each["step"]): value for name, value in {**each["metrics"], **beside}.items()
            }
        elif each["kind"] == "evaluation":
            found |= {(f"{each['data']}/{name}", each["step"]): value for name, value in each["metrics"].items()}
    return found


class Writer:
    """In place of torch's."""

    made: ClassVar[list[Writer]] = []

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.values, self.closed = folder, purge_step, {}, False
        self.made.append(self)

    def add_scalar(self, name, value, step):
        self.values[name, step] = value

    def close(self):
        self.closed = True


def package_is(monkeypatch, spec):
    """What is found where tensorboard is looked for."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "tensorboard" else find(name))


@pytest.fixture
def installed(monkeypatch):
    """As if the package were there; the writers that are made."""
    stand_in = ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    package_is(monkeypatch, SimpleNamespace())
    monkeypatch.setattr(Writer, "made", [])
    return Writer.made


def test_every_number_of_the_log_is_a_scalar(tmp_path, installed):
    Trainer(config(tmp_path / "run"), World()).run()
    (writer,) = installed
    assert writer.folder == str(tmp_path / "run" / "tensorboard") and writer.closed and writer.purge_step is None
    assert writer.values == expected(tmp_path / "run")
    assert {"training/loss", "training/lr", "validation/digit_loss", "test/digit_loss"} <= {
        name for name, _ in writer.values
    }


@pytest.mark.world_size(2)
def test_rank_zero_alone_writes(world, tmp_path, monkeypatch):
    stand_in = ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    package_is(monkeypatch, SimpleNamespace())
    monkeypatch.setattr(Writer, "made", [])
    Trainer(config(tmp_path / "run"), World.current()).run()
    assert len(Writer.made) == (world.rank == 0)


def test_a_resumed_run_takes_back_what_came_after_its_checkpoint(tmp_path, installed):
    first = config(tmp_path / "run")
    Trainer(first, World()).run()
    Trainer(dataclasses.replace(first, steps=6), World()).run()
    assert [each.purge_step for each in installed] == [None, 5]


def test_without_the_package_it_is_refused_and_without_the_setting_not_looked_for(tmp_path, monkeypatch):
    package_is(monkeypatch, None)
    with pytest.raises(ConfigError, match=r"pip install 'validate-ddp\[tensorboard\]'"):
        Trainer(config(tmp_path / "run"), World()).run()
    Trainer(config(tmp_path / "other", wanted=False), World()).run()
    assert not (tmp_path / "other" / "tensorboard").exists()


def test_tensorboard_itself_reads_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Trainer(config(tmp_path / "run"), World()).run()
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    found = {(name, each.step): each.value for name in events.Tags()["scalars"] for each in events.Scalars(name)}
    assert found == pytest.approx(expected(tmp_path / "run"), rel=1e-6)
