"""A run whose ranks are killed at any moment, in the middle of saving too, ends as the one that nobody touched."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from trainer_runs import saved_in  # noqa: E402

from reference_trainer.checkpoint.directory import Directory  # noqa: E402

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
RANKS = 3
LEFT_OVER = ".step-*"


class Jobs:
    """Starts and kills ranks, by way of a process that has torch imported."""

    def __init__(self):
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ranks_to_kill.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self.alive = []

    def ask(self, **what):
        self.server.stdin.write(json.dumps(what) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        assert answer, "the process that starts ranks has ended"
        return json.loads(answer)

    def start(self, folder, **options):
        folder.mkdir(exist_ok=True)
        self.alive = self.ask(start=str(folder), ranks=RANKS, **options)

    def wait(self, seconds):
        """Exit codes; None for a rank that still runs."""
        return self.ask(wait=seconds)

    def kill(self, victims):
        """SIGKILL to these ranks, then to those that they leave behind."""
        for rank in victims:
            os.kill(self.alive[rank], signal.SIGKILL)
        if len(victims) < RANKS:
            self.wait(0.05)
        for pid in self.alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        assert None not in self.wait(20)

    def end(self):
        self.server.stdin.close()
        self.server.wait(20)


@pytest.fixture(scope="module")
def jobs():
    made = Jobs()
    yield made
    made.end()


def finished(jobs, folder, **options):
    """Runs to the end, untouched; returns seconds."""
    start = time.monotonic()
    jobs.start(folder, **options)
    codes = jobs.wait(300)
    assert codes == [0] * RANKS, (folder / "log0").read_text()
    return time.monotonic() - start


def everything(folder):
    """What the run has come to: the whole last checkpoint, but for the settings of this machine and folder."""
    last = next(iter(Directory(folder / "run" / "checkpoints").all()), None)
    return last.name, saved_in(last) | {"run": None, "config": None}


def differences(a, b, where=""):
    """The places in which two nested states are not the same, bit by bit."""
    if type(a) is not type(b):
        return [f"{where}: {type(a).__name__}, {type(b).__name__}"]
    if isinstance(a, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(-1), b.view(-1))
        return [] if same else [where]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{where}: {sorted(map(str, a.keys() ^ b.keys()))}"]
        return [found for key in a for found in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return [f"{where}: {len(a)}, {len(b)}"]
        return [
            found for n, (x, y) in enumerate(zip(a, b, strict=True)) for found in differences(x, y, f"{where}[{n}]")
        ]
    return [] if a == b else [f"{where}: {a!r}, {b!r}"]


def order(folder):
    """The samples of each step and rank; fails where a step that was made again saw others."""
    seen = {}
    for line in (folder / "samples").read_text().splitlines():
        step, rank, samples = line.split(" ")
        assert seen.setdefault((int(step), int(rank)), samples) == samples
    return seen


def readable(folder):
    """Reads every checkpoint that has a name; returns how many there are and whether a save was cut off."""
    directory = Directory(folder / "run" / "checkpoints")
    found = directory.all()
    for path in found:
        saved_in(path)
    return len(found), any(directory.folder.glob(LEFT_OVER))


def attack(jobs, folder, rng, kills, seconds, **options):
    """Kills ``kills`` times, each time that long after the start; returns kills made and those that cut off a save."""
    made = cut = saved = 0
    while made < kills:
        jobs.start(folder, **options)
        if None not in jobs.wait(rng.uniform(0.1, seconds)):
            break  # it reached the end
        jobs.kill(range(RANKS) if rng.random() < 0.5 else [rng.randrange(RANKS)])
        made += 1
        there, was_cut = readable(folder)
        assert there >= min(saved, 1), "a kill took the last checkpoint"
        saved, cut = there, cut + was_cut
    return made, cut


@pytest.fixture(scope="module")
def oracle(jobs, tmp_path_factory):
    """The run that nobody touches."""
    folder = tmp_path_factory.mktemp("oracle") / "job"
    finished(jobs, folder, steps=30, workers=0, slow=0.0)
    return folder


def killed_when(jobs, folder, moment, rng, **options):
    """Starts, and kills one rank or all, some milliseconds after ``moment()`` is true."""
    jobs.start(folder, **options)
    until = time.monotonic() + 60
    while not moment():
        assert time.monotonic() < until, (folder / "log0").read_text()
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.02))
    jobs.kill(range(RANKS) if rng.random() < 0.5 else [rng.randrange(RANKS)])
    assert readable(folder)[0] >= 1, "a kill took the last checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_is_killed_ends_as_the_uninterrupted_one_bit_by_bit(jobs, oracle, tmp_path, workers):
    options, rng = {"steps": 30, "workers": workers, "slow": 0.01}, random.Random(workers)
    folder = tmp_path / "job"
    directory = Directory(folder / "run" / "checkpoints")

    def saving():
        return directory.all() and any(directory.folder.glob(LEFT_OVER))

    def training():
        return any(path.name >= "step-00000012" for path in directory.all())

    killed_when(jobs, folder, saving, rng, **options)
    killed_when(jobs, folder, training, rng, **options)
    finished(jobs, folder, **options)
    assert everything(folder)[0] == everything(oracle)[0] == "step-00000030"
    assert differences(everything(folder), everything(oracle)) == []
    assert order(folder) == order(oracle)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 2])
def test_fifty_kills_at_random_moments_lose_nothing(jobs, tmp_path, workers):
    options = {"steps": 150, "workers": workers, "slow": 0.006}
    whole = tmp_path / "whole"
    seconds = finished(jobs, whole, **{**options, "workers": 0})
    expected, samples = everything(whole), order(whole)
    rng, kills, cut, runs = random.Random(7 + workers), 0, 0, 0
    while kills < 50:
        folder = tmp_path / f"attacked{runs}"
        made, cut_off = attack(jobs, folder, rng, min(50 - kills, 12), min(3.0, 0.4 * seconds), **options)
        finished(jobs, folder, **options)
        assert differences(everything(folder), expected) == []
        assert order(folder) == samples
        kills, cut, runs = kills + made, cut + cut_off, runs + 1
    print(
        f"\n{kills} kills on {RANKS} ranks with {workers} workers, {cut} of them within a save; {runs} runs, all equal"
    )
    assert cut > 0, "no kill met a save: the test looks past what it is for"
