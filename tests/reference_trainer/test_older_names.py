"""Names of older trainers: what each is now, in files and on the command line, and that it is told."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("yaml")
from reference_trainer.cli import main
from reference_trainer.config import Config, ConfigError
from reference_trainer.settings import types_of
from reference_trainer.words import OLDER_NAMES, SWITCHES, in_new_form, read_config

TORCHRUN = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip


def config(*words, environ=None):
    return read_config(words, environ or {})


def test_every_older_name_is_a_setting_of_today():
    assert set(OLDER_NAMES.values()) <= set(types_of(Config))


def test_the_flags_of_the_original_notes_are_known():
    notes = (
        "--enable_club_loss --club_lambda --club_update_freq --club_training_steps --club_lr --batch_size "
        "--gradient_accumulation_steps --num_epochs --lr --learning_rate --num_workers --output_dir --data_path "
        "--teacher_path --student_config --multi_gpu --distributed --lora_rank --dataset_repeat"
    )
    known = {*OLDER_NAMES, *SWITCHES, *types_of(Config)}
    assert [flag for flag in notes.split() if flag.removeprefix("--") not in known] == []


def test_older_flags_are_the_settings_of_today_and_are_told_once(capsys):
    found = config(
        *"--enable_club_loss --club_lambda 0.5 --club_update_freq=2 --club-training-steps 3 --club_lr 1e-2".split(),
        *"--batch_size 4 --gradient_accumulation_steps 2 --num_epochs 5 --learning_rate 1e-4 --num_workers 1".split(),
        *"--output_dir out --data_path a.npz --dataset_repeat 6".split(),
    )
    default = Config()
    assert found == dataclasses.replace(
        default,
        club=dataclasses.replace(default.club, enabled=True, weight=0.5, update_every=2, inner_steps=3, lr=1e-2),
        batch_size=4,
        accumulation=2,
        epochs=5,
        optim=dataclasses.replace(default.optim, lr=1e-4),
        data=dataclasses.replace(default.data, workers=1, path="a.npz"),
        run_dir="out",
        repeat=6,
    )
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "enable_club_loss -> club.enabled=true, club_lambda -> club.weight=0.5" in err
    assert "batch_size" not in err


def test_other_ranks_do_not_tell_it(capsys):
    second = TORCHRUN | {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    assert config("--lr", "1", environ=second).optim.lr == 1
    assert capsys.readouterr().err == ""


def test_club_is_switched_off_by_the_older_name():
    assert not config("--enable_club_loss", "false").club.enabled
    assert not config("enable_club_loss=false").club.enabled


def test_the_section_distributed_of_a_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "num_epochs: 2\ndistributed:\n  backend: gloo\n  mixed_precision:\n    enabled: false\n    dtype: bf16\n"
    )
    found = config("--config", str(file))
    assert (found.epochs, found.dist.backend, found.precision) == (2, "gloo", "float32")


def layer(**values):
    return {name.replace("__", "."): value for name, value in values.items()}


def new(found, launched=False):
    return in_new_form(found, "a.yaml", launched=lambda: launched)[0]


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "bf16"), ("bf16", "bf16"), ("float16", "fp16")])
def test_mixed_precision_is_the_precision(dtype, precision):
    found = layer(distributed__mixed_precision__enabled="true", distributed__mixed_precision__dtype=dtype)
    assert new(found) == {"precision": precision}


def test_multi_gpu_is_one_process_for_all_gpus_unless_a_launcher_is_there():
    assert new(layer(multi_gpu="true")) == {"dist.strategy": "dp"}
    assert new(layer(multi_gpu="true"), launched=True) == {}
    assert new(layer(multi_gpu="false")) == {}


def test_every_value_of_an_older_name_is_one_that_the_setting_takes():
    assert config("--multi_gpu").dist.strategy == "dp"
    for dtype in ("bf16", "fp16"):
        words = ("distributed.mixed_precision.enabled=true", f"distributed.mixed_precision.dtype={dtype}")
        assert config(*words).precision == dtype
    found = config("--teacher_path", "t.pt", "--student_config", "s.yaml", "--lora_rank", "8")
    assert (found.distillation.teacher, found.distillation.student, found.lora.rank) == ("t.pt", "s.yaml", 8)


def test_distributed_under_a_launcher_is_nothing_to_set_and_without_one_refused(capsys):
    assert config("--distributed", environ=TORCHRUN) == Config()
    assert "distributed -> -" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node GPUS -m reference_trainer train"):
        config("--distributed")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--club_lambda", "--club_lambda: its value is missing"),
        ("--club_lambda much", "command line: club.weight is 'much'; it must be a number"),
        ("distributed.mixed_precision.dtype=bf16", "enabled is None; it must be true or false"),
        ("distributed.mixed_precision.enabled=true", "dtype is None; it must be bf16 or fp16"),
        ("distributed.mixed_precision.enabled=true distributed.mixed_precision.dtype=int8", "it must be bf16 or fp16"),
        ("distributed.mixed_precision.enabled=2", "it must be true or false"),
    ],
)
def test_what_cannot_be_meant_is_one_line(words, told, capsys):
    assert main(["train", *words.split()]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and told in err
