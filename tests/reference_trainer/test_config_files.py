"""Configuration files: what they are composed of, what wins, how values are read, and how mistakes are told."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytest.importorskip("yaml")
from reference_trainer.cli import main, read_config
from reference_trainer.config import Config
from reference_trainer.settings import made, read_as, types_of


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test in an empty folder, as a user."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def config(*words):
    return read_config(words, {})


def values(found):
    """A configuration as plain data."""
    return dataclasses.asdict(found)


def test_no_words_are_the_defaults():
    assert config() == Config()


def test_files_then_overrides_then_options(folder):
    written(
        folder,
        base="seed: 1\noptim: {lr: 1, clip: 1}\nlog_every: 1\neval_every: 1\n",
        fast="optim:\n  lr: 2\nlog_every: 2\neval_every: 2\n",
        run="defaults: [base, fast.yaml]\nlog_every: 3\neval_every: 3\naccumulation: 3\n",
    )
    found = config("eval_every=4", "--config", "run.yaml", "--accumulation", "5", "accumulation=4")
    assert (found.seed, found.optim.clip, found.optim.lr) == (1, 1.0, 2.0)
    assert (found.log_every, found.eval_every, found.accumulation) == (3, 4, 5)
    assert config("--config=base.yaml", "--config", "fast.yaml").optim == found.optim


def test_defaults_are_found_beside_the_file_that_names_them(folder):
    (folder / "deep").mkdir()
    written(folder, base="seed: 7\n", run="defaults: deep/middle\n")
    (folder / "deep" / "middle.yaml").write_text("defaults:\n  - ../base\n")
    assert config("--config", "run.yaml").seed == 7


def test_values_are_read_as_the_type_of_their_field(folder):
    written(
        folder,
        run="optim: {lr: 1e-4, betas: [0.5, 9e-1], clip: ~, lr_scaling: none}\n"
        "drop_last: yes\nrun_dir: 2026-01-01\nsteps: 1e3\nclub.hidden: [8]\ncheckpoint: {resume: none, best: no}\n"
        "eval_every: 1\nema:\n",
    )
    found = config("--config", "run.yaml", "disentangle.hidden=3, 4", "ema.decay=.5", "club.enabled=off")
    assert (found.optim.lr, found.optim.betas, found.optim.clip) == (1e-4, (0.5, 0.9), None)
    assert (found.drop_last, found.run_dir, found.steps, found.club.hidden) == (True, "2026-01-01", 1000, (8,))
    assert (found.checkpoint.resume, found.checkpoint.best, found.optim.lr_scaling) == ("none", "no", "none")
    assert (found.disentangle.hidden, found.ema.decay, found.club.enabled) == ((3, 4), 0.5, False)


def test_the_configuration_that_a_run_writes_repeats_it(folder):
    first = config("run_dir=r\N{GRINNING FACE}\N{LATIN SMALL LETTER E WITH ACUTE}", "epochs=2", "optim.lr=1e-05")
    (folder / "config.json").write_text(json.dumps(values(first), indent=2, ensure_ascii=False))
    assert config("--config", "config.json") == first
    # And with another length.
    other = config("--config", "config.json", "--steps", "3", "--epochs", "null")
    assert values(other) == values(first) | {"steps": 3, "epochs": None}


def test_an_option_mends_what_a_file_alone_could_not_be(folder):
    written(folder, run="checkpoint: {best: digit_accuracy}\n")
    assert config("--config", "run.yaml", "--eval-every", "5").checkpoint.best == "digit_accuracy"


def test_a_word_after_an_option_is_its_value_and_no_override():
    found = config("--run-dir", "steps=3", "--no-drop-last", "steps=4", "--no-club.enabled", "seed=5")
    assert (found.run_dir, found.steps, found.seed) == ("steps=3", 4, 5)


@pytest.mark.parametrize(
    ("files", "words", "told"),
    [
        ({}, "", "no.yaml: No such file"),
        ({}, "--config", "--config: its value is missing"),
        ({}, "run.yaml", "a file is given as --config FILE"),
        ({"run": "defaults: [gone]\n"}, "", "run.yaml: its defaults name gone.yaml: No such file"),
        ({"run": "defaults: [b]\n", "b": "defaults: [run]\n"}, "", "run.yaml -> b.yaml -> run.yaml"),
        ({"run": "a: [\n"}, "", "run.yaml: it is not YAML"),
        ({"run": "- 3\n"}, "", "run.yaml: settings are wanted"),
        ({"run": "[" * 1500}, "", "run.yaml: it is not YAML"),
        ({"run": "optim:\n  lrs: 3\n"}, "", "run.yaml: there is no setting optim.lrs; did you mean optim.lr?"),
        ({"run": "optin:\n  lr: 3\n"}, "", "run.yaml: there is no setting optin.lr; did you mean optim.lr?"),
        ({"run": "optim: 3\n"}, "", "run.yaml: there is no setting optim"),
        ({"run": "seed: one\n"}, "", "run.yaml: seed is 'one'; it must be a whole number"),
        ({"run": "seed: 1.5\n"}, "", "it must be a whole number"),
        ({"run": "seed:\n"}, "", "run.yaml: seed is ''; it must be a whole number"),
        ({"run": "drop_last: 1\n"}, "", "it must be true or false"),
        ({"run": "device: gpu\n"}, "", "device is 'gpu'; it must be auto, cpu or cuda"),
        ({"run": "optim.betas: [1]\n"}, "", "it must have 2 values"),
        ({"run": "seed: {a: 1}\n"}, "", "run.yaml: there is no setting seed.a"),
        ({"run": "seed: [[1]]\n"}, "", "it must be a whole number"),
        ({"run": "\n\noptim: {lr: -1}\n"}, "", "run.yaml: optim.lr is '-1'; it must be above 0"),
        ({"run": "steps: 1\nepochs: 1\n"}, "", "steps is 1 and epochs is 1"),
        ({}, "sede=3", "command line: there is no setting sede; did you mean seed?"),
        ({}, "optim.lr=fast", "command line: optim.lr is 'fast'; it must be a number"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(folder, capsys, files, words, told):
    written(folder, **files)
    asked = words.split() or ["--config", "run.yaml" if files else "no.yaml"]
    assert main(["train", *asked]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and told in err


def test_a_file_that_is_no_text_is_one_line(folder, capsys):
    (folder / "run.yaml").write_bytes(b"seed: \xff\n")
    assert main(["train", "--config", "run.yaml"]) == 2
    assert "can't decode" in capsys.readouterr().err


def test_every_field_has_a_type_that_can_be_read_from_its_own_text():
    default = values(Config())

    def at(name):
        found = default
        for part in name.split("."):
            found = found[part]
        return found

    read = {}
    for name, kind in types_of(Config).items():
        value = at(name)
        text = [str(each) for each in value] if isinstance(value, tuple) else "null" if value is None else str(value)
        read[name] = read_as(text, kind)
        assert read[name] == value, name
    assert made(Config(), read) == Config()


# The plan of a run.


def plan(capsys, *words):
    assert main(["plan", *words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_plan_of_a_configuration_is_that_of_the_run(folder, capsys):
    written(folder, run="epochs: 3\nbatch_size: 8\naccumulation: 2\noptim: {lr: 1e-2, lr_scaling: linear}\n")
    found = plan(capsys, "--config", "run.yaml", "data.train_samples=100", "--gpus", "2")
    assert (found["effective_batch_size"], found["optimizer_steps"], found["padded"]) == (32, 12, 28)
    assert found["lr"] == pytest.approx(1e-2 * 32 / 256)
    assert found["samples_per_rank"] == 64


def test_options_of_plan_win_over_the_configuration(folder, capsys):
    written(folder, run="epochs: 3\nbatch_size: 8\n")
    words = "--epochs null --steps 5 --batch-size null --global-batch 20 --samples 40"
    found = plan(capsys, "--config", "run.yaml", *words.split())
    assert (found["effective_batch_size"], found["optimizer_steps"], found["optimizer_steps_per_epoch"]) == (20, 5, 2)


def test_the_defaults_of_train_are_planned_where_anything_is_set(capsys):
    assert plan(capsys, "seed=1")["optimizer_steps"] == 600
