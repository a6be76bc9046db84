"""A training job with a fault planted in it: ranks of it run as processes of their own, under any launcher.

python job.py RUN_DIR [SETTING=VALUE ...]      see Job for the settings
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from reference_trainer.config import CheckpointConfig, Config, ConfigError, DataConfig, DistConfig, LogConfig
from reference_trainer.core.objective import Loss, Objective
from reference_trainer.launch import World
from reference_trainer.signals import ignore
from reference_trainer.trainer import Data, Trainer

KINDS = ("raise", "refuse", "kill", "exit", "quit", "interrupt", "hang")
EVERY = -1
PLACES = ("forward", "collective", "evaluation", "loader", "saving")


@dataclass
class Job:
    """Which rank does what where, and how long each part takes."""

    kind: str = ""
    """One of KINDS; "" for a job that ends well."""
    place: str = "forward"
    rank: int = 1
    """Or EVERY."""
    step: int = 5
    """The optimizer step (0 is the first)."""
    steps: int = 12
    pace: float = 0.0
    """Seconds of a step, of an evaluation's batch, and of a save."""
    workers: int = 0
    eval_every: int = 0
    eval_batch: int = 4
    save_every: int = 0
    saves: int = 0
    """Saves that go well before the fault in saving."""
    timeout: float = 60.0
    """Of a collective, after the first step."""
    heartbeat: float = 5.0
    """Seconds between those of a rank."""
    folder: Path = Path()
    hold_gil: float = 0.0
    """Seconds for which the rank holds the GIL at that step."""

    def strike(self, place: str, step: int, rank: int) -> None:
        """The fault, where this is its place."""
        if (place, step) != (self.place, self.step) or self.rank not in (rank, EVERY):
            return
        if self.hold_gil:
            hold_the_gil(self.hold_gil)
        # Whole or not there, and of the first: two workers may get here, and be killed on the way.
        written = self.folder / f"struck {os.getpid()} {time.monotonic_ns()}"
        written.write_text(str(time.monotonic()))
        with suppress(FileExistsError):
            os.link(written, self.folder / "struck")
        if self.kind == "raise":
            raise ZeroDivisionError(f"planted in {place}")
        if self.kind == "refuse":
            raise ConfigError(f"planted in {place}")
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "exit":
            os._exit(7)
        if self.kind == "quit":
            sys.exit(0)
        if self.kind == "interrupt":
            raise KeyboardInterrupt
        if self.kind == "hang":
            time.sleep(3600)


def hold_the_gil(seconds: float) -> None:
    """Runs C code that does not let other threads in."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(20_000_000))


class Samples:
    """A source of nothing, in which the fault may lie."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank, self.first = job, rank, None

    def __len__(self) -> int:
        return 32

    def fetch(self, index: torch.Tensor, epoch: int) -> dict[str, torch.Tensor]:
        self.calls = getattr(self, "calls", -1) + 1
        if self.calls * max(1, self.job.workers) >= self.job.step:
            self.job.strike("loader", self.job.step, self.rank)
        return {"x": index.float().unsqueeze(1) / 32}


class Slope(Objective):
    """One weight, and the faults of forward, collective and evaluation."""

    def __init__(self, job: Job, world: World) -> None:
        self.job, self.world = job, world
        self.module = nn.Linear(1, 1)

    def mark(self, what: str) -> None:
        """A file that says how far rank zero is."""
        if self.world.is_main:
            (self.job.folder / what).touch()

    def prepare(self, forward, batches, total):
        step, rank = batches[0].step, self.world.rank
        if self.job.place == "collective" and step == self.job.step and self.world.size > 1:
            if self.job.kind == "kill" and rank == self.job.rank:
                threading.Timer(0.2, self.job.strike, ("collective", step, rank)).start()
            elif rank == self.job.rank:
                time.sleep(0.2)  # the others are in it by now
                self.job.strike("collective", step, rank)
            else:
                time.sleep(0.4 if self.job.kind == "kill" else 0)
            dist.all_reduce(torch.zeros(1))

    def loss(self, forward, batch):
        self.mark(f"step {batch.step}")
        time.sleep(self.job.pace)
        self.job.strike("forward", batch.step, self.world.rank)
        error = forward(batch.data["x"]) - 2 * batch.data["x"]
        return Loss((error**2).sum(), {}, {})

    def evaluate(self, module, batch):
        self.mark("evaluation")
        time.sleep(self.job.pace)
        self.job.strike("evaluation", self.job.step, self.world.rank)
        return {"error": (module(batch.data["x"]) - 2 * batch.data["x"]).abs().sum()}

    def draw(self, module, folder, step):
        self.job.strike("drawing", step, self.world.rank)


def slow_and_faulty_saving(job: Job, world: World) -> None:
    """Makes each fsync take the pace, and fail if the fault lies there: a save is then under way."""
    fsync, folder = os.fsync, job.folder / "run" / "checkpoints"

    def planted(descriptor: int) -> None:
        if world.is_main:
            (job.folder / "saving").touch()
        time.sleep(job.pace)
        if len(list(folder.glob("step-*"))) >= job.saves:
            job.strike("saving", job.step, world.rank)
        fsync(descriptor)

    os.fsync = planted


def parse(arguments: tuple[str, ...]) -> Job:
    """The settings, by the types of their defaults."""
    job = Job()
    for each in arguments:
        name, _, value = each.partition("=")
        setattr(job, name, type(getattr(job, name))(value))
    return job


def main(run_dir: str, *arguments: str) -> None:
    job = parse(arguments)
    job.folder = Path(run_dir)
    torch.set_num_threads(1)
    config = Config(
        run_dir=f"{run_dir}/run",
        steps=job.steps,
        global_batch=12,
        log_every=1,
        eval_every=job.eval_every,
        eval_batch=job.eval_batch,
        data=DataConfig(workers=job.workers),
        checkpoint=CheckpointConfig(save_every=job.save_every, keep=1000),
        log=LogConfig(heartbeat=job.heartbeat),
        dist=DistConfig(start_timeout=300, train_timeout=job.timeout),
    )
    with World.from_env(dist=config.dist) as world:
        slow_and_faulty_saving(job, world)
        samples = Samples(job, world.rank)
        quiet = Samples(Job(), world.rank)
        trainer = Trainer(config, world, data=Data(samples, quiet, quiet), objective=Slope(job, world))
        summary = trainer.run()
        if summary.stopped:
            ignore()
        # One write: print gives the newline apart, and the other rank can come between.
        sys.stdout.write(f"rank {world.rank} ended at step {summary.step} {summary.stopped}".rstrip() + "\n")
        sys.stdout.flush()
        del trainer


if __name__ == "__main__":
    main(*sys.argv[1:])
