"""A rank fails in any way, anywhere: all end, and the first error that is printed is what went wrong.

As plain processes over gloo, where the others lose their peer, and under torchrun, which ends them.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from trainer_runs import saved_in  # noqa: E402

from reference_trainer.launch import LOST  # noqa: E402

from .conftest import environment  # noqa: E402

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(600)]

TIMEOUT = 1.5
"""Seconds of a collective's time-out, where a rank hangs."""
TOLD = {
    # what the first error that is printed says, of a rank that:
    "raise": re.compile("^ZeroDivisionError"),  # of a loader, torch wraps it
    "kill": LOST,
    "exit": LOST,
    "hang": re.compile("Timed out waiting|Application timeout"),
}
CASES = [("raise", "forward", 1), ("kill", "forward", 0), ("exit", "collective", 1), ("raise", "saving", 0)]
LAUNCHED = [("raise", "loader", 1), ("kill", "forward", 0), ("hang", "forward", 1)]
"""All kinds in all places are in the soak."""


def settings(kind, place, rank, **options):
    """Of a job with this fault."""
    ours = {"kind": kind, "place": place, "rank": rank, "workers": int(place == "loader"), "save_every": 3}
    return ours | {"timeout": TIMEOUT if kind == "hang" else 60} | options


def first_error(ended):
    """The last line of the first traceback."""
    return next(iter(re.findall(r"^(?:\[rank\d\]: )?([\w.]*(?:Error|Exception)\b.*)", ended.output, re.MULTILINE)), "")


def whole_checkpoints(ended):
    """The steps of the checkpoints there are; reading one that is not whole raises."""
    return [saved_in(path)["step"] for path in sorted((ended.folder / "run" / "checkpoints").glob("step-*"))]


@pytest.mark.parametrize(("kind", "place", "rank"), CASES)
def test_when_one_rank_fails_the_other_ends_too_and_the_cause_is_told_first(start_job, kind, place, rank):
    ended = start_job(2, **settings(kind, place, rank)).end()
    assert not ended.left and 0 not in ended.codes, ended.output
    assert TOLD[kind].search(first_error(ended)), ended.output
    # In step 5 (from 0) the last save is that of step 3; the fault in saving is in its first one.
    assert whole_checkpoints(ended) == ([] if place == "saving" else [3])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "place", "rank"), LAUNCHED)
def test_under_torchrun_all_ranks_end_and_the_cause_is_told_first(start_torchrun, kind, place, rank):
    ended = start_torchrun(3, **settings(kind, place, rank)).end()
    assert not ended.left and ended.codes == [1], ended.output
    assert TOLD[kind].search(first_error(ended)), ended.output


def test_a_fault_in_a_save_leaves_the_checkpoint_before_and_the_run_goes_on_from_it(start_job):
    ended = start_job(2, **settings("kill", "saving", 0, saves=1)).end()
    assert whole_checkpoints(ended) == [3]
    again = start_job(2, folder=ended.folder, save_every=3).end()
    assert again.codes == [0, 0], again.output
    assert "resumed from" in again.output and whole_checkpoints(again) == [3, 6, 9, 12]


def test_a_job_that_ends_well_says_nothing_of_faults(start_job):
    ended = start_job(3, workers=1, eval_every=4, hold_gil=1.0).end()
    assert ended.codes == [0, 0, 0] and not ended.left
    assert first_error(ended) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"), [("data.source=no:data", "No module named"), ("objective=mine:Raises", "ZeroDivision")]
)
def test_under_torchrun_an_error_of_the_user_is_one_line_and_another_is_shown_with_its_rank(tmp_path, words, told):
    (tmp_path / "mine.py").write_text("def Raises():\n    1 / 0\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train = ["-m", "reference_trainer", "train", "--steps", "2", "--run-dir", "run", words]
    done = subprocess.run(
        [*torchrun, *train], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1 and told in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("reference-trainer: error: ")]
    assert len(lines) == (told != "ZeroDivision"), done.stderr
    # torchrun ends with a traceback of its own.
    assert ("reference_trainer/trainer.py" in done.stderr) == (told == "ZeroDivision"), done.stderr
