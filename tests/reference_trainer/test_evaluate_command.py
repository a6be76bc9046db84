"""`reference-trainer evaluate`: what a run's checkpoints come to is what the run itself had logged, on any ranks."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
from reference_trainer.checkpoint import latest  # noqa: E402
from reference_trainer.cli import main  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.monitor.records import log_path, read_log  # noqa: E402

pytestmark = pytest.mark.runtime

RUN = "train --steps 4 --eval-every 2 --checkpoint.save-every 2 --ema.decay 0.9 --batch-size 8".split()
RUN += "--data.train-samples 40 --data.validation-samples 10 --disentangle.hidden 8 --disentangle.features 4".split()
RUN += "--precision float64 --eval-batch 100".split()


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def evaluated(capsys, *words):
    capsys.readouterr()
    assert main(["evaluate", *map(str, words), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def run(tmp_path):
    assert main([*RUN, "--run-dir", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def logged(run):
    """Metrics by step and part of the data."""
    records = [each for each in read_log(log_path(run, 0)) if each["kind"] == "evaluation"]
    return {(each["step"], each["data"]): each["metrics"] for each in records}


def test_it_gives_what_the_run_had_logged_with_the_averaged_weights_and_changes_nothing(run, capsys):
    before, metrics = contents(run), logged(run)
    found = evaluated(capsys, run)
    assert (found["step"], found["checkpoint"]) == (4, str(latest(run)))
    assert found["validation"] == metrics[4, "validation"] and found["test"] == metrics[4, "test"]
    earlier = evaluated(capsys, run / "checkpoints" / "step-00000002")
    assert earlier["step"] == 2 and earlier["validation"] == metrics[2, "validation"]
    assert contents(run) == before
    assert main(["evaluate", str(run)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("validation: ") and second.startswith("test: ")


def told_by_ranks(run):
    """The command's exit code and output, on a rank of a world that is there. Collective."""
    out = io.StringIO()
    with mock.patch.object(World, "from_env", lambda **_: World.current()), redirect_stdout(out):
        return main(["evaluate", str(run), "--format", "json"]), out.getvalue()


def test_two_ranks_share_it_and_rank_zero_tells_whatever_trained(run, worlds):
    (first, told), second = worlds.run(told_by_ranks, run, world_size=2)
    assert first == 0 and second == (0, "")
    for part in ("validation", "test"):
        assert json.loads(told)[part] == pytest.approx(logged(run)[4, part], abs=1e-12)


def test_settings_that_the_run_did_not_have_are_told(run, capsys):
    other = evaluated(capsys, run, "--data.train-samples", "41", "seed=5")
    assert other["test"] != evaluated(capsys, run)["test"]
    assert main(["evaluate", str(run), "seed=5"]) == 0
    assert "seed was 0 and is 5" in capsys.readouterr().err


def test_what_is_no_run_is_a_line(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path / "none")]) == 2
    told = capsys.readouterr().err
    assert "config.json: No such file" in told and told.count("\n") == 1
