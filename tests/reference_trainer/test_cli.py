"""The command: what it imports, what it refuses and how, and that it trains."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("rich")
import reference_trainer
from reference_trainer import cli
from reference_trainer.cli import main
from reference_trainer.config import Config

PLAN = ["plan", "--samples", "170180", "--gpus", "2", "--epochs", "5"]

SCRIPT = """
import json, sys
from reference_trainer.cli import main
code = main(sys.argv[1:])
print("\\n" + json.dumps([code, [name for name in ("torch", "numpy", "sklearn", "matplotlib") if name in sys.modules]]))
"""


def words_of(value):
    """The name of a test from its command line."""
    return " ".join(value) if isinstance(value, list) else ""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Whatever started this test, the command is to see one process."""
    for name in list(os.environ):
        if name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") or name.startswith(("SLURM_", "ACCELERATE_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (PLAN, 0),
        (["plan", "seed=1", "--format", "json"], 0),
        (["train", "--help"], 0),
        (["doctor", "--help"], 0),
        (["train", "--steps", "3", "--epochs", "4"], 2),
    ],
    ids=words_of,
)
def test_help_plan_and_refusals_import_nothing_heavy(words, code):
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.strip().splitlines()[-1]) == [code, []]


def test_ranks_that_cannot_share_the_batch_are_refused_before_torch_is_imported():
    words = [sys.executable, "-c", SCRIPT, "train", "--global-batch", "64"]
    launch = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    done = subprocess.run(words, env={**os.environ, **launch}, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout.strip().splitlines()[-1]) == [2, []]
    assert "2 or 4 ranks can" in done.stderr and done.stderr.count("\n") == 1


def test_importing_the_package_imports_no_torch_and_every_name_is_there():
    script = "import sys, reference_trainer; print('torch' in sys.modules, sorted(reference_trainer.__all__))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split(" ", 1)[0] == "False", done.stderr
    assert set(reference_trainer.__all__) <= set(dir(reference_trainer))
    with pytest.raises(AttributeError, match="no attribute 'Trainers'"):
        reference_trainer.Trainers  # noqa: B018


@pytest.mark.runtime
def test_each_exported_name_is_what_its_module_defines():
    pytest.importorskip("torch")
    for name in reference_trainer.__all__:
        found = getattr(reference_trainer, name)
        assert found.__name__ == name
        assert found.__module__.startswith("reference_trainer.")


def test_plan_prints_the_numbers(capsys):
    assert main([*PLAN, "--steps-per-second", "2.5"]) == 0
    text = capsys.readouterr().out
    assert "425,450" in text and "85,090" in text and "1 d 23:16:20" in text
    assert "\x1b" not in text


def test_plan_as_json_has_the_keys_that_tools_rely_on(capsys):
    assert main([*PLAN, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "samples_per_rank": 85_090,
        "padded": 0,
        "dropped": 0,
        "micro_steps_per_epoch": 85_090,
        "optimizer_steps_per_epoch": 85_090,
        "optimizer_steps": 425_450,
        "effective_batch_size": 2,
        "lr": 0.001,
    }
    assert main([*PLAN, "--format", "json", "--steps-per-second", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] == 212_725


class Output(io.StringIO):
    """Standard output in an encoding, which decides how errors are drawn before we take their reason out."""

    def __init__(self, encoding):
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self):
        return self._encoding


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["frob"], "unknown command 'frob'; there are train, plan, doctor"),
        (["plan", "--samples", "many", "--epochs", "1"], "argument --samples: invalid int value: 'many'"),
        (["plan", "--samples", "64", "--gpus", "3", "--global-batch", "64", "--epochs", "1"], "2 or 4 ranks can"),
        ([*PLAN, "--steps-per-second", "0"], "steps_per_second is 0.0"),
        (
            ["train", "--setps", "3"],
            "there is no setting setps; did you mean steps?",
        ),
        (["train", "--steps"], "--steps: its value is missing"),
        (["train", "--optim.lr", "-1"], "optim.lr is '-1'; it must be above 0"),
        (
            ["train", "--optim.schedule", "cubic"],
            "it must be constant, linear, cosine, one_cycle",
        ),
        (["train", "--steps", "3", "--epochs", "4"], "steps is 3 and epochs is 4"),
        (["doctor", "everything"], "argument check: invalid choice: 'everything'"),
        (["doctor", "--timeout", "0"], "must be above 0"),
    ],
    ids=words_of,
)
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_bad_input_is_one_line_and_exit_code_2(words, told, encoding, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Output(encoding))
    assert main(words) == 2
    assert sys.stdout.getvalue() == ""
    err = capsys.readouterr().err
    assert told in err
    assert err.startswith("reference-trainer: error: ") and err.count("\n") == 1


def test_half_a_launch_is_one_line_and_exit_code_2(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    assert main(["train"]) == 2
    assert "half a launch: RANK set, but not LOCAL_RANK" in capsys.readouterr().err


def test_the_first_rank_of_a_machine_tells_at_once_what_is_wrong_and_the_others_later_with_their_rank(
    monkeypatch, capsys
):
    waited = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    for rank, told, seconds in (
        ("0", "error: unknown command", []),
        ("5", "error: rank 5: unknown command", [cli.STAND_BACK]),
    ):
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("RANK", rank)
        assert main(["frob"]) == 2
        assert told in capsys.readouterr().err and waited == seconds


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["train"], "safetensors"),
        (["doctor"], "torch"),
        (["export", "a", "b"], "numpy"),
    ],
    ids=words_of,
)
def test_a_package_that_is_missing_is_one_line_before_anything_begins(words, missing, monkeypatch, capsys):
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == missing else name)
    assert main(words) == 2
    assert capsys.readouterr().err == (
        f"reference-trainer: error: {missing} missing: pip install 'validate-ddp[trainer]'\n"
    )


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_output_that_nobody_reads_to_its_end_ends_the_command_in_silence(unbuffered):
    reader, writer = socket.socketpair()
    reader.shutdown(socket.SHUT_RDWR)
    command = [sys.executable, "-m", "reference_trainer", "train", "--help"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with reader, writer:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (1, b"")


def test_no_command_shows_the_help_and_is_bad_input(capsys):
    assert main([]) == 2
    assert "usage: reference-trainer COMMAND" in capsys.readouterr().out


def test_the_process_ends_with_the_exit_code():
    command = [sys.executable, "-m", "reference_trainer"]
    assert subprocess.run([*command, "frob"], capture_output=True, timeout=60).returncode == 2
    assert subprocess.run([*command, "--help"], capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize("word", ["--local-rank=1", "--local_rank=1"])
def test_the_local_rank_that_torch_distributed_launch_passes_is_ignored(word, capsys):
    assert main([word, "plan", "--samples", "3"]) == main(["plan", word, "--samples", "3"]) == 0
    assert "samples per epoch" in capsys.readouterr().out


def train(folder, *words):
    """The command on a rank; its exit code."""
    return main(["train", "--steps", "4", "--log-every", "2", "--run-dir", folder, *words])


def records(folder, rank):
    """What a rank has logged, without what differs between runs."""
    from reference_trainer.monitor.records import log_path, read_log

    return [record for record in read_log(log_path(folder, rank)) if record["kind"] != "event"]


@pytest.mark.runtime
def test_train_leaves_a_run(tmp_path, capfd):
    pytest.importorskip("torch")
    from reference_trainer import latest

    assert train(str(tmp_path / "run")) == 0
    assert {each.name for each in (tmp_path / "run").iterdir()} == {
        ".lock",
        "checkpoints",
        "config.json",
        "metrics",
        "status",
    }
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["steps"], config["optim"]["lr"]) == (4, Config().optim.lr)
    assert latest(tmp_path / "run").name == "step-00000004"
    assert [(each["kind"], each["step"]) for each in records(tmp_path / "run", 0)][:2] == [
        ("interval", 2),
        ("interval", 4),
    ]
    shown = capfd.readouterr().err
    assert shown.index("optimizer steps") < shown.index("step 2/4") < shown.index("step 4/4")
    # A second run does not write over the first: it finds that there is nothing left to do, or is refused.
    assert train(str(tmp_path / "run")) == 0
    assert "step-00000004, after step 4 of 4" in capfd.readouterr().err
    assert train(str(tmp_path / "run"), "--checkpoint.resume", "none") == 2
    assert "holds a run already" in capfd.readouterr().err
    assert train(str(tmp_path / "run"), "--seed", "1") == 2
    assert capfd.readouterr().err.strip().endswith("(with these weights: checkpoint.init_from)")
    out = str(tmp_path / "weights.safetensors")
    assert main(["export", str(tmp_path / "run"), out]) == 0
    assert capfd.readouterr().out.endswith("step-00000004\n")
    assert main(["export", str(tmp_path / "run"), out]) == 2
    assert "weights.safetensors is there already" in capfd.readouterr().err
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "ema"), "--ema"]) == 2
    assert "step-00000004 has no moving average (ema.decay)" in capfd.readouterr().err


@pytest.mark.runtime
def test_a_world_that_does_not_divide_the_batch_is_refused_before_a_folder_is_made(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    three = reference_trainer.World(size=3)
    monkeypatch.setattr(reference_trainer.World, "from_env", lambda **options: three)
    assert train(str(tmp_path / "run")) == 2
    assert "a global batch of 256 cannot be shared by 3 ranks" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
