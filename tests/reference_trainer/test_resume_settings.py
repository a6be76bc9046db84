"""Where a run begins, which settings may change when it goes on, and how often it is saved."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from trainer_runs import EIGHT_STEPS as CONFIG  # noqa: E402
from trainer_runs import same, saved_in, trained  # noqa: E402

from reference_trainer.checkpoint import (  # noqa: E402
    CheckpointError,
    latest,
    run,
)
from reference_trainer.checkpoint.directory import Directory  # noqa: E402
from reference_trainer.checkpoint.run import RunCheckpoints  # noqa: E402
from reference_trainer.config import (  # noqa: E402
    CheckpointConfig,
)
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime


REFUSED = {
    "seed": replace(CONFIG, seed=4),
    "global_batch": replace(CONFIG, global_batch=20),
    "samples": replace(CONFIG, data=replace(CONFIG.data, train_samples=50)),
    "drop_last": replace(CONFIG, drop_last=True),
}
ACCEPTED = {
    "steps": replace(CONFIG, steps=9),
    "optim.lr": replace(CONFIG, optim=replace(CONFIG.optim, lr=0.5)),
    "global_batch, said otherwise": replace(CONFIG, global_batch=None, batch_size=12),
    "accumulation": replace(CONFIG, accumulation=2),
    "log_every": replace(CONFIG, log_every=3),
    "data.workers": replace(CONFIG, data=replace(CONFIG.data, workers=1)),
    "checkpoint.keep": replace(CONFIG, checkpoint=CheckpointConfig(keep=5)),
}


def begun(config, folder):
    """Begins a run; returns its state."""
    trainer = Trainer(config, World.current())
    with RunCheckpoints(folder, config, trainer.plan, World()) as checkpoints:
        checkpoints.begin(trainer.state)
    return trainer.state


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run directory with a checkpoint after step 2."""
    folder = tmp_path_factory.mktemp("saved")
    trained(CONFIG, folder, 2)
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_makes_it_another_run_is_refused_by_its_name(saved, name):
    with pytest.raises(CheckpointError, match=rf"step-00000002 is of another run: .*\b{name} was .* and is ") as told:
        begun(REFUSED[name], saved)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ACCEPTED)
def test_another_setting_may_change_and_it_is_told(saved, name, capsys):
    assert begun(ACCEPTED[name], saved).step == 2
    told = ("steps", "optim.lr", "accumulation", "log_every", "data.workers")
    assert (f"{name} was" in capsys.readouterr().err) == (name in told)


def test_a_checkpoint_of_before_streams_were_told_is_read(saved, monkeypatch):
    rest_of = run.rest_of
    without = lambda path: {name: each for name, each in rest_of(path).items() if name != "stream"}  # noqa: E731
    monkeypatch.setattr(run, "rest_of", without)
    assert begun(CONFIG, saved).step == 2


# Where a run begins.


def test_weights_of_another_run_begin_a_new_one_and_its_average(saved, tmp_path):
    config = replace(CONFIG, seed=9, checkpoint=CheckpointConfig(init_from=str(saved)))
    state = begun(config, tmp_path)
    model = saved_in(latest(saved))["model"]
    assert state.step == 0 and same(dict(state.objective.module.state_dict()), model)
    assert same(state.ema.state_dict(), model)


def test_what_there_is_to_resume_comes_before_weights_to_begin_with(saved, tmp_path):
    config = replace(CONFIG, checkpoint=CheckpointConfig(init_from=str(tmp_path / "gone.pt")))
    assert begun(config, saved).step == 2
    with pytest.raises(CheckpointError, match=r"gone.pt is no file with weights"):
        begun(config, tmp_path / "new")


def test_to_begin_anew_among_checkpoints_is_refused(saved, tmp_path):
    config = replace(CONFIG, checkpoint=CheckpointConfig(resume="none"))
    with pytest.raises(CheckpointError, match=r'has checkpoints and checkpoint.resume is "none"'):
        begun(config, saved)
    assert begun(config, tmp_path / "new").step == 0


def test_a_run_goes_back_to_a_checkpoint_in_another_folder(tmp_path):
    config = replace(CONFIG, checkpoint=CheckpointConfig(keep=9))
    for until in (2, 4, 6):
        trained(config, tmp_path / "one", until)
    earlier = tmp_path / "one" / "checkpoints" / "step-00000004"
    back = replace(config, checkpoint=CheckpointConfig(keep=9, resume=str(earlier)))
    assert begun(back, tmp_path / "other").step == 4 and begun(back, tmp_path / "one").step == 6


def test_a_run_goes_on_elsewhere_and_then_from_its_own_checkpoints(saved, tmp_path, capsys):
    config = replace(CONFIG, checkpoint=CheckpointConfig(resume=str(saved)))
    assert trained(config, tmp_path, 3)["step"] == 3
    assert begun(config, tmp_path).step == 3  # the same command, queued again
    assert "has checkpoints of its own, which come before" in capsys.readouterr().err
    assert latest(saved).name == "step-00000002"


def test_the_best_checkpoint_is_kept_and_survives_a_resume(tmp_path):
    config = replace(CONFIG, eval_every=1, checkpoint=CheckpointConfig(keep=1, best="score", best_mode="max"))
    scores = iter([0.1, 0.9, float("nan"), 0.5])
    for _ in range(2):
        trainer = Trainer(config, World.current())
        with RunCheckpoints(tmp_path, config, trainer.plan, World()) as checkpoints:
            checkpoints.begin(trainer.state)
            until = trainer.state.step + 2
            for _ in trainer.steps():
                checkpoints.is_best(trainer.state, {"score": next(scores)})
                checkpoints.save(trainer.state)
                if trainer.state.step == until:
                    break
    directory = Directory(tmp_path / "checkpoints")
    assert [path.name for path in directory.all()] == ["step-00000004", "step-00000002"]
    assert (directory.folder / "best").read_text() == "step-00000002\n" and trainer.state.best.value == 0.9
    with pytest.raises(CheckpointError, match=r"checkpoint.best is 'score'; the evaluation has accuracy"):
        checkpoints.is_best(trainer.state, {"accuracy": 1.0})


@pytest.mark.parametrize(
    ("save_every", "keep", "names"),
    [(0, 2, [4]), (2, 2, [4, 2]), (1, 2, [4, 3]), (1, 1, [4]), (3, 9, [4, 3])],
)
def test_checkpoints_come_as_often_as_is_asked(tmp_path, save_every, keep, names):
    options = CheckpointConfig(save_every=save_every, keep=keep)
    Trainer(replace(CONFIG, steps=4, run_dir=str(tmp_path), checkpoint=options), World()).run()
    found = Directory(tmp_path / "checkpoints").all()
    assert [path.name for path in found] == [f"step-0000000{step}" for step in names]


@pytest.mark.parametrize(("mode", "best"), [("min", 2), ("max", 3)])
def test_the_least_or_the_greatest_value_is_best(tmp_path, mode, best):
    config = replace(CONFIG, eval_every=1, checkpoint=CheckpointConfig(best="score", best_mode=mode))
    trainer = Trainer(config, World.current())
    with RunCheckpoints(tmp_path, config, trainer.plan, World()) as checkpoints:
        for step, score in enumerate([0.5, 0.1, 0.9], start=1):
            trainer.state.step = step
            checkpoints.is_best(trainer.state, {"score": score})
    assert trainer.state.best.step == best


def test_a_trainer_that_runs_twice_in_one_directory_ends_where_it_had_ended(tmp_path):
    config = replace(CONFIG, steps=4, run_dir=str(tmp_path / "run"), checkpoint=CheckpointConfig(save_every=2))
    first = Trainer(config, World()).run()
    second = Trainer(config, World()).run()
    assert (first.step, first.test) == (second.step, second.test)
    longer = Trainer(replace(config, steps=6), World()).run()
    assert longer.step == 6
    whole = replace(config, steps=6, run_dir=str(tmp_path / "whole"))
    assert Trainer(whole, World()).run().test == longer.test


def test_a_checkpoint_is_written_beside_training(tmp_path, monkeypatch):
    settings = CheckpointConfig(save_every=3, keep=9)
    beside, going_on = replace(settings, background=True), threading.Event()
    write, seen = run.write, []

    def slow(final, *given):
        # The first one is on its way until a step has been made.
        assert going_on.wait(60)
        seen.append((final.name, threading.current_thread() is threading.main_thread()))
        return write(final, *given)

    def ran(name, checkpoint):
        config = replace(CONFIG, run_dir=str(tmp_path / name), checkpoint=checkpoint)
        trainer = Trainer(config, World())
        advance = trainer.due
        trainer.due = lambda every: (going_on.set() if trainer.state.step == 4 else None, advance(every))[1]
        trainer.run()
        return [saved_in(each) for each in Directory(tmp_path / name / "checkpoints").all()]

    whole = ran("one", settings)
    monkeypatch.setattr(run, "write", slow)
    going_on.clear()
    other = ran("other", beside)
    assert seen == [("step-00000003", False), ("step-00000006", False), ("step-00000008", True)]
    assert [each["step"] for each in other] == [8, 6, 3]
    for one, two in zip(whole, other, strict=True):
        assert all(same(one[name], two[name]) for name in ("model", "ema", "moments", "optimizer", "objective", "rng"))


def test_what_goes_wrong_beside_training_is_told_by_the_next_save(tmp_path, monkeypatch):
    def full(*given):
        raise CheckpointError("no space")

    monkeypatch.setattr(run, "write", full)
    settings = CheckpointConfig(save_every=3, background=True)
    with pytest.raises(CheckpointError, match="no space"):
        Trainer(replace(CONFIG, run_dir=str(tmp_path), checkpoint=settings), World()).run()
