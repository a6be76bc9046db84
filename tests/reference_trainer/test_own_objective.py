"""A user's own objective: the page shows the file, and the file runs, on one process and on two under torchrun."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import reference_trainer  # noqa: E402
from reference_trainer.checkpoint import latest  # noqa: E402
from reference_trainer.checkpoint.weights import read_part  # noqa: E402
from reference_trainer.monitor.records import log_path, read_log  # noqa: E402

pytestmark = pytest.mark.runtime

EXAMPLE = Path(reference_trainer.__file__).parent / "examples" / "own_objective.py"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "objectives" / "your-own.md"


def test_the_page_shows_the_file():
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown == EXAMPLE.read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in shown.splitlines()) <= 40


def run_example(folder):
    """The file as a script, in a folder of its own; its weights, and the error on its test samples."""
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    (run,) = (folder / "runs").iterdir()
    (test,) = (each["metrics"] for each in read_log(log_path(run, 0)) if each["kind"] == "evaluation")
    return read_part(latest(run)), test["squared_error"]


@pytest.mark.world_size(2, backend=None)  # the environment of torchrun, and no group
def test_it_learns_on_two_ranks_what_it_learns_on_one(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights, error = run_example(tmp_path / "two")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name)
    if world.rank == 0:
        alone, found = run_example(tmp_path / "one")
        assert found == pytest.approx(error, rel=1e-3) and error < 0.03  # of which 0.01 is noise
        for name, each in alone.items():
            torch.testing.assert_close(weights[name], each, rtol=0, atol=1e-3, msg=name)
