"""Jobs of several processes: as plain processes, forked in a moment, and under torchrun."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
DEADLINE = 300.0
"""Seconds after which a job that is not over is killed, and its test fails: a busy machine takes a minute to begin."""


@dataclass
class Ended:
    """How a job ended."""

    codes: list[int]
    """Of each rank, minus the signal that killed it; of the launcher alone under one."""
    ended: float
    """time.monotonic() when its last process had gone."""
    left: bool
    """Processes were left at the deadline."""
    folder: Path

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    @property
    def since_struck(self) -> float:
        """Seconds from the planted fault to the end of the last process."""
        return self.ended - float((self.folder / "struck").read_text())


@dataclass
class Running:
    """A job under way. pids: of its ranks; of the launcher alone under one."""

    folder: Path
    pids: list[int]
    deadline: float
    process: subprocess.Popen = field(repr=False)

    def wait_for(self, name: str) -> None:
        """Returns when the job has made that file."""
        while not (self.folder / name).exists():
            assert time.monotonic() < self.deadline, f"no {name} yet:\n{(self.folder / 'output').read_text()}"
            time.sleep(0.002)

    def end(self) -> Ended:
        raise NotImplementedError


class Forked(Running):
    def end(self) -> Ended:
        return Ended(folder=self.folder, **json.loads(self.process.stdout.readline()))


class Launched(Running):
    def end(self) -> Ended:
        left = False
        try:
            self.process.wait(max(0.1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            left = True
            self.process.terminate()
            self.process.wait(60)
        return Ended([self.process.returncode], time.monotonic(), left, self.folder)


def environment() -> dict[str, str]:
    """One thread a rank, and nothing that could be taken for a launcher's."""
    ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    theirs = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC", "SLURM_")
    return {name: value for name, value in os.environ.items() if not name.startswith(theirs)} | ours


def arguments(folder: Path, settings: dict) -> list[str]:
    return [str(folder), *(f"{name}={value}" for name, value in settings.items())]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, str(HERE / "forking.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    yield process
    process.stdin.close()
    process.wait(30)
    process.stdout.close()


@pytest.fixture
def start_job(fork_server, tmp_path_factory):
    """start_job(ranks, **settings of job.Job) -> Running, as plain processes."""

    def start(ranks: int = 2, *, folder: Path | None = None, deadline: float = DEADLINE, **settings) -> Running:
        folder = folder or tmp_path_factory.mktemp("job")
        wanted = {"ranks": ranks, "arguments": arguments(folder, settings), "deadline": deadline}
        fork_server.stdin.write(json.dumps(wanted | {"output": str(folder / "output")}) + "\n")
        fork_server.stdin.flush()
        pids = json.loads(fork_server.stdout.readline())["pids"]
        return Forked(folder, pids, time.monotonic() + deadline, fork_server)

    return start


def launched(command: list[str], folder: Path, deadline: float, settings: dict) -> Running:
    """A job under a launcher that is given a command line."""
    with open(folder / "output", "ab") as output:
        process = subprocess.Popen(
            [sys.executable, *command, *arguments(folder, settings)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
    return Launched(folder, [process.pid], time.monotonic() + deadline, process)


@pytest.fixture
def start_torchrun(tmp_path_factory):
    """The same under torchrun."""

    def start(ranks: int = 2, *, folder: Path | None = None, deadline: float = DEADLINE, **settings) -> Running:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        folder = folder or tmp_path_factory.mktemp("job")
        return launched([*torchrun, str(HERE / "job.py")], folder, deadline, settings)

    return start


@pytest.fixture
def port() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A run with checkpoints after steps 1, 2 and 3."""
    from trainer_runs import opened

    folder = tmp_path_factory.mktemp("original")
    with opened(folder) as (trainer, checkpoints):
        for _ in trainer.steps():
            checkpoints.save(trainer.state)
            if trainer.state.step == 3:
                break
    return folder


@pytest.fixture
def run(original, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(original, tmp_path / "run")
