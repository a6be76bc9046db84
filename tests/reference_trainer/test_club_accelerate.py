"""The example of CLUB in an Accelerate loop runs on two processes, and trains as on one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

import reference_trainer  # noqa: E402

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

PACKAGE = Path(reference_trainer.__file__).parent
EXAMPLE = PACKAGE / "examples" / "club_in_accelerate_loop.py"


def started(launcher, *options):
    """The example, in processes of its own."""
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(EXAMPLE), *options]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(180)
def test_two_processes_under_accelerate_launch_train_as_one(tmp_path):
    """Plain SGD in float64: the weights are equal because every gradient was. Two micro-batches a step."""
    options = ["--steps", "16", "--accumulation", "2"]
    # A free port: others may run Accelerate beside us.
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0"]
    one = started([], *options, "--batch-size=32", f"--save={tmp_path / 'one.pt'}")
    two = started(launcher, *options, "--batch-size=16", f"--save={tmp_path / 'two.pt'}")
    for process, said in ((one, "CLUB: runs on 1 rank,"), (two, "CLUB: runs on 2 ranks, as accelerator has it")):
        output, errors = process.communicate(timeout=170)
        assert process.returncode == 0, errors
        assert said in errors
        assert "step   16  club" in output
    expected, found = (torch.load(tmp_path / name, weights_only=True) for name in ("one.pt", "two.pt"))
    for name, right in expected.items():
        assert (found[name] - right).abs().max() < 1e-12, name
