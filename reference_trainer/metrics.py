"""What a run leaves to be read: means over all samples in a file for each rank (`records`), and heartbeats."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import resource
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .config import Config, ConfigError
from .core.collectives import broadcast_object, gather_objects, sum_reducer
from .core.plan import Plan
from .core.step import StepResult
from .launch import World
from .monitor.records import Heartbeat, RankLog
from .progress import shown, table
from .rendezvous import from_rank_zero


class Means(NamedTuple):
    """What an interval comes to; equal on all ranks but for ``seconds``."""

    metrics: dict[str, float]
    steps: int
    counted: float  # Over all ranks: what the metrics are a mean over.
    seconds: float


class Interval:
    """Means over the samples of all ranks and steps of a logging interval, but for steps that were not taken.

    One all-reduce and one wait for the device, when it is closed.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.results: list[StepResult] = []
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leaves out of ``seconds`` what was before. Local."""
        self._since = time.perf_counter()

    def add(self, result: StepResult) -> None:
        """Takes in a step, without reading a value. Local; all ranks add the same names."""
        self.results.append(result)

    def close(self) -> Means:
        """The means since the last call, which was before a step. Collective: every rank, after the same steps."""
        results, self.results = self.results, []
        values = [{**each.values, "grad_norm": each.grad_norm} for each in results]  # those of all ranks already
        taken = None if results[0].taken is None else torch.stack([each.taken for each in results])
        steps = len(results) if taken is None else taken.sum()
        sums = {name: _sum([each.sums[name] for each in results], taken) for name in sorted(results[0].sums)}
        means = {name: _sum([each[name] for each in values], taken) / steps for name in sorted(values[0])}
        packed, reduce_sum = torch.stack(list(sums.values())), sum_reducer(self.world.group)
        packed = packed if reduce_sum is None else reduce_sum(packed)
        count = _sum([torch.as_tensor(each.total, device=packed.device) for each in results], taken)
        *found, counted = torch.cat([packed / count, torch.stack([*means.values(), count])]).tolist()
        metrics = dict(zip([*sums, *means], found, strict=True)) if counted else {}
        closed = Means(metrics, len(results), counted, time.perf_counter() - self._since)
        self.restart_clock()
        return closed


def _sum(values: list[Tensor], taken: Tensor | None) -> Tensor:
    """The sum of scalars in float64, of the steps that were taken."""
    stacked = torch.stack(values).double()
    # Not a product: what was not taken may be NaN.
    return (stacked if taken is None else torch.where(taken, stacked, 0.0)).sum()


class RunLog:
    """All that a run writes beside its weights, each rank into files of its own; used as a context. Local but for
    ``interval`` and making one, which tells configuration and plan. step: where the run begins. doing: something
    between steps, for those who watch: "evaluating", "saving"."""

    def __init__(self, folder: Path, config: Config, plan: Plan, world: World, *, step: int = 0) -> None:
        self.folder, self.world, self.total = folder, world, plan.optimizer_steps
        self._batch, self._lines = plan.effective_batch_size, RankLog(folder, world.rank)
        self._interval, self._lr, self._step, self._stopped = Interval(world), math.nan, step, ""
        places = gather_objects(place(world), world.group)
        # By rank zero's clock: it tells the ranks of this start from files that an earlier one has left.
        started = broadcast_object(round(time.time(), 3), world.group)
        of: dict[str, Any] = {"started": started, "total": self.total, "step": step}
        self._heartbeat = Heartbeat(folder, world, config.log.heartbeat, **of)
        self.doing = self._heartbeat.doing
        self.event("start", pid=os.getpid(), launcher=world.launcher, **place(world))
        self.event("plan", **dataclasses.asdict(plan))
        if world.is_main:
            written = json.dumps(dataclasses.asdict(config), indent=2, ensure_ascii=False)
            (folder / "config.json").write_text(written + "\n", encoding="utf-8")
        self.show(f"run directory {folder} ({world_in_words(world)})")
        if world.size > 1:
            self.show(told_places(places))
        self.show(table(plan))
        if len(names := sorted({each["device_name"] for each in places})) > 1:
            many = " and ".join(names)
            self.tell("warning", f"ranks have different devices, {many}: each step waits for the slowest")

    def add(self, result: StepResult, *, lr: float) -> None:
        """Takes in a step. lr: the learning rate that it was made with."""
        self._interval.add(result)
        self._heartbeat.advance()
        self._lr = lr

    def interval(self, step: int) -> dict[str, float]:
        """Writes and returns the means since the last call. step: optimizer steps done. Collective: every rank."""
        means, self._step, device = self._interval.close(), step, self.world.device
        rate = means.steps * self._batch / means.seconds if means.seconds > 0 else math.inf
        said: dict[str, Any] = {"metrics": means.metrics, "lr": self._lr, "samples_per_second": rate}
        # The most that this rank has used so far: of the GPU, else of the process.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        memory = int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else peak
        self._lines.write("interval", step, **said, steps=means.steps, seconds=means.seconds, memory_bytes=memory)
        self._heartbeat.say(**said)
        self.show(f"{self._at(step)}  {shown(means.metrics)}  lr {self._lr:.3g}  {rate:,.0f} samples/s")
        return means.metrics

    def evaluation(self, step: int, data: str, metrics: dict[str, float]) -> None:
        """Writes the means of an evaluation."""
        self._step = step
        self._lines.write("evaluation", step, data=data, metrics=metrics)
        evaluations = self._heartbeat.said["evaluations"]
        self._heartbeat.say(evaluations={**evaluations, data: {"step": step, "metrics": metrics}})
        self.show(f"{self._at(step)}  {data}: {shown(metrics)}")
        if not self._interval.results:
            self._interval.restart_clock()

    def _at(self, step: int) -> str:
        return f"step {step:>{len(str(self.total))}}/{self.total}"

    def show(self, text: str) -> None:
        """Prints on rank zero."""
        if self.world.is_main:
            print(text, file=sys.stderr, flush=True)

    def event(self, event: str, **fields: Any) -> None:
        """Writes something that happened."""
        self._lines.write("event", self._step, event=event, **fields)

    def tell(self, event: str, line: str) -> None:
        """Prints a line on rank zero, and writes it as an event: "warning", "note"."""
        self.event(event, message=line)
        self.show(line)

    def stopped(self, line: str) -> None:
        """A warning, and that the run ends before the end of its plan."""
        self._stopped = line
        self.tell("warning", line)

    def weights(self, step: int, sha256: str) -> None:
        """Writes what this rank's weights have come to after a step: equal where they are, bit by bit."""
        self._step = step
        self.event("weights", sha256=sha256)
        self.show(f"weights after step {step}: sha256 {sha256}")

    def __enter__(self) -> RunLog:
        self._heartbeat.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.event("end")
            self._heartbeat.end("stopped" if self._stopped else "finished", self._stopped)
        else:
            self._heartbeat.end("failed", ": ".join([kind.__name__, *str(error).strip().splitlines()[:1]]))
            self.event("error", type=kind.__name__, message=str(error))
        self._lines.close()


def world_in_words(world: World) -> str:
    """Such as "2 ranks on cpu, torchrun"."""
    return f"{world.size} rank{'s' * (world.size > 1)} on {world.device.type}, {world.launcher}"


def place(world: World) -> dict[str, Any]:
    """What this rank runs on. memory_bytes: of the device; of the machine where it is the CPU. Local."""
    if world.device.type == "cuda":
        found = torch.cuda.get_device_properties(world.device)
        name, memory = found.name, int(found.total_memory)
    else:
        name = f"{platform.machine()}, {os.cpu_count()} cores"
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    host, device = socket.gethostname(), str(world.device)
    return {"host": host, "device": device, "device_name": name, "memory_bytes": memory}


def told_places(places: Sequence[dict[str, Any]]) -> str:
    """A line for the ranks that are alike. places: one a rank, in order. Local."""
    alike: dict[str, list[str]] = {}
    for rank, each in enumerate(places):
        where = f"{each['host']}, {each['device_name']}, {each['memory_bytes'] / 2**30:,.0f} GiB"
        alike.setdefault(where, []).append(str(rank))
    return "\n".join(f"rank {', '.join(ranks)}: {where}" for where, ranks in alike.items())


def run_folder(config: Config, world: World) -> Path:
    """The run directory, made by rank zero, agreed upon by all. Collective: every rank.

    ``ConfigError`` where it cannot be made, or holds a run and the configuration says to begin anew.
    """

    def make() -> Path:
        folder = Path(config.run_dir or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
        if config.checkpoint.resume == "none" and (folder / "metrics").exists():
            raise ConfigError(f'run_dir {folder} holds a run already and checkpoint.resume is "none"; give another one')
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            told = f"the run directory {error.filename or folder} cannot be made: {error.strerror or error}"
            raise ConfigError(f"{told}; give another one as run_dir") from error
        return folder

    return from_rank_zero(make, world)
