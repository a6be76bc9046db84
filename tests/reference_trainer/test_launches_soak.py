"""Each launch comes to the same weights; started wrong in each way it ends in bounded time, with one line on why.

torchrun and torch.distributed.launch set the ranks' environment and host the store: what goes wrong there is told by
their agent, in its own words, and only that it ends is asserted. `make soak` prints the table of launches and faults.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch")
from reference_trainer.monitor.records import log_path, read_log

pytestmark = [pytest.mark.runtime, pytest.mark.soak]

START = 4
"""Seconds for which ranks wait for each other (dist.start_timeout)."""
LIMIT = START + 25
"""Seconds to the end of all processes, imports of torch on a busy machine included."""
TRAIN = ["-m", "reference_trainer", "train", "--device", "cpu", "--steps", "2", "--dist.start-timeout", str(START)]
PATIENT = ["-m", "reference_trainer", "train", "--device", "cpu", "--steps", "8", "--run-dir"]
FAR = "192.0.2.1"
"""An address for documentation, which is nobody's (RFC 5737)."""


class Seen(NamedTuple):
    """What became of a wrong launch."""

    seconds: float
    codes: list[int]
    output: str

    @property
    def lines(self):
        """What the trainer said of it: without the start of the line that names it or the rank."""
        starts = ("reference-trainer: error: ", "rank ")
        return [line for line in self.output.splitlines() if line.startswith(starts) and "waits for" not in line]


def plain(rank, size, host, port):
    values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": host, "MASTER_PORT": port}
    return {name: str(value) for name, value in values.items()}


def accelerate(rank, size, host, port):
    return {**plain(rank, size, host, port), "ACCELERATE_MIXED_PRECISION": "no"}


def slurm(rank, size, host, port):
    step = {"PROCID": rank, "LOCALID": rank, "STEP_NUM_TASKS": size, "STEP_TASKS_PER_NODE": size, "JOB_ID": 4711}
    named = {f"SLURM_{name}": str(value) for name, value in step.items()}
    return {**named, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": host, "MASTER_PORT": str(port)}


ENVIRONMENTS = {"plain": plain, "accelerate": accelerate, "slurm": slurm}
DROPPED = {"plain": "LOCAL_RANK", "accelerate": "WORLD_SIZE", "slurm": "SLURM_STEP_NODELIST"}
FAULTS = {
    "half an environment": r"set, but not (LOCAL_RANK|WORLD_SIZE);|on no SLURM_STEP_NODELIST; use srun",
    "far MASTER_ADDR": "did not meet at",
    "busy port": r"(?i)address already in use",
    "3 ranks, batch 64": "cannot be shared by 3 ranks: it must be divisible by their number; 2 or 4 ranks can",
    "a rank missing": "did not meet at",
}
table: list[tuple[str, str, Seen]] = []


@pytest.fixture(scope="module", autouse=True)
def shown():
    """The table of all cells, when they are done."""
    yield
    print("\nlaunch        fault                  seconds  codes         what is said")
    for launch, fault, seen in table:
        said = seen.lines[0] if seen.lines else "(the agent's own words)"
        codes = " ".join(map(str, seen.codes))
        print(f"{launch:<13} {fault:<22} {seen.seconds:7.1f}  {codes:<12}  {said[:150]}")


def run(folder, *processes):
    """Starts all and waits. processes: (words after the interpreter, variables)."""
    theirs = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC", "SLURM_", "ACCELERATE_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    clean |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    output, start = Path(folder) / "output", time.monotonic()
    with open(output, "wb") as file:
        started = [
            subprocess.Popen(
                [sys.executable, *words], env=clean | environ, stdout=file, stderr=subprocess.STDOUT, cwd=folder
            )
            for words, environ in processes
        ]
        try:
            codes = [each.wait(max(0.1, start + 120 - time.monotonic())) for each in started]
        finally:
            for each in started:
                each.kill()
    return Seen(time.monotonic() - start, codes, output.read_text(errors="replace"))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("launch", ENVIRONMENTS)
def test_ranks_with_a_wrong_environment_end_soon_with_one_line(launch, fault, port, tmp_path):
    environment, train = ENVIRONMENTS[launch], [*TRAIN, "--run-dir", str(tmp_path / "run")]
    with socket.create_server(("", 0)) as other:
        if fault == "half an environment":
            environ = environment(0, 2, "127.0.0.1", port)
            del environ[DROPPED[launch]]
            seen = run(tmp_path, (train, environ))
        elif fault == "far MASTER_ADDR":
            seen = run(tmp_path, (train, environment(1, 2, FAR, port)))
        elif fault == "busy port":
            seen = run(tmp_path, (train, environment(0, 2, "127.0.0.1", other.getsockname()[1])))
        elif fault == "3 ranks, batch 64":
            train += ["--global-batch", "64"]
            seen = run(tmp_path, *[(train, environment(rank, 3, "127.0.0.1", port)) for rank in range(3)])
        else:
            seen = run(tmp_path, (train, environment(0, 2, "127.0.0.1", port)))
    table.append((launch, fault, seen))
    assert seen.seconds < LIMIT
    assert set(seen.codes) == {2}, seen.output
    assert len(seen.lines) == len(seen.codes), seen.output  # each rank its line: nobody ends the others here
    assert all(re.search(FAULTS[fault], line) for line in seen.lines), seen.lines
    assert "Traceback" not in seen.output


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("launch", ["run", "launch"])
def test_torchrun_ends_soon_too(launch, fault, port, tmp_path):
    module, train = ["-m", f"torch.distributed.{launch}"], [*TRAIN, "--run-dir", str(tmp_path / "run")]
    static = ["--nproc-per-node", "1", "--master-port", str(port)]
    soon = ["--rdzv-conf", f"timeout={START},read_timeout={START}"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        if fault == "half an environment":  # all is set anew: nothing is wrong
            options = ["--standalone", "--nproc-per-node", "2"]
        elif fault == "far MASTER_ADDR":
            options = [*static, *soon, "--nnodes", "2", "--node-rank", "1", "--master-addr", FAR]
        elif fault == "busy port":
            options = [*static[:2], "--master-port", str(other.getsockname()[1])]
        elif fault == "3 ranks, batch 64":
            options = ["--standalone", "--nproc-per-node", "3"]
            train += ["--global-batch", "64"]
        else:
            options = [*static, *soon, "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1"]
        stray = {"RANK": "0"} if fault == "half an environment" else {}
        seen = run(tmp_path, ([*module, *options, *train], stray))
    table.append((f"torch {launch}", fault, seen))
    assert seen.seconds < LIMIT + 20
    assert (seen.codes == [0]) == (fault == "half an environment"), seen.output
    if fault == "3 ranks, batch 64":  # the trainer's own, once
        assert len([line for line in seen.lines if FAULTS[fault] in line]) == 1, seen.output


def weights(run_dir):
    """SHA-256 of the weights that each rank has come to; one where they are equal."""
    logs = [read_log(log_path(run_dir, rank)) for rank in range(2)]
    return {record["sha256"] for log in logs for record in log if record.get("event") == "weights"}


@pytest.fixture(scope="module")
def by_torchrun(tmp_path_factory):
    """The weights of one agent with two ranks."""
    folder = tmp_path_factory.mktemp("torchrun")
    options = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert run(folder, ([*options, *PATIENT, str(folder / "run")], {})).codes == [0]
    return weights(folder / "run")


@pytest.mark.parametrize("launch", [*ENVIRONMENTS, "torch.distributed.launch", "launch.sh", "two agents", "static"])
def test_every_launch_comes_to_the_same_weights(launch, by_torchrun, port, tmp_path):
    train = [*PATIENT, str(tmp_path / "run")]
    agent = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    if launch in ENVIRONMENTS:
        processes = [(train, ENVIRONMENTS[launch](rank, 2, "127.0.0.1", port)) for rank in range(2)]
    elif launch == "torch.distributed.launch":
        processes = [(["-m", launch, "--nproc-per-node", "2", "--master-port", str(port), *train], {})]
    elif launch == "launch.sh":
        script = str(resources.files("reference_trainer") / "scripts" / launch)
        call = "import os, sys; os.execvp('bash', ['bash', *sys.argv[1:]])"
        processes = [(["-c", call, script, "2", *train[2:]], {"PYTHON": sys.executable})]
    elif launch == "two agents":
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "two"]
        processes = [([*agent, *meeting, *train], {})] * 2
    else:
        address = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        processes = [([*agent, "--node-rank", str(number), *address, *train], {}) for number in range(2)]
    seen = run(tmp_path, *processes)
    assert set(seen.codes) == {0}, seen.output
    assert weights(tmp_path / "run") == by_torchrun and len(by_torchrun) == 1
