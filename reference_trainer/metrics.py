"""What a run leaves to be read: means over all samples in a file for each rank (`records`), heartbeats, TensorBoard."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .config import Config, ConfigError
from .core.collectives import broadcast_object, gather_objects, sum_reducer
from .core.plan import Plan
from .launch import World
from .monitor.heartbeat import Heartbeat, peak_memory
from .progress import Progress, table
from .records import RankLog
from .rendezvous import from_rank_zero, mismatches, place, table_of_places

if TYPE_CHECKING:
    from .core.step import StepResult


_FOLD_AT = 64
"""Steps kept one by one before they are summed: bounds memory, and leaves single steps free of extra work."""


@dataclasses.dataclass(frozen=True)
class Means:
    """What an interval comes to; equal on all ranks but for ``seconds``."""

    metrics: dict[str, float]
    steps: int
    samples: float  # Counted over all ranks.
    seconds: float


class Interval:
    """Means over the samples of all ranks and steps of a logging interval, but for steps that were not taken.

    One all-reduce and one wait for the device, when it is closed.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._reset()

    def _reset(self) -> None:
        self._pending: list[StepResult] = []
        self._sums: dict[str, Tensor] = {}
        self._values: dict[str, tuple[Tensor | float, Tensor | int]] = {}
        self._count: float | Tensor = 0.0
        self._steps = 0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leaves out of ``seconds`` what was before. Local."""
        self._since = time.perf_counter()

    @property
    def is_empty(self) -> bool:
        return not (self._pending or self._steps)

    def add(self, result: StepResult) -> None:
        """Takes in a step, without reading a value. Local; all ranks add the same names."""
        self._pending.append(result)
        if len(self._pending) >= _FOLD_AT:
            self._fold()

    def close(self) -> Means:
        """The means since the last call. Collective: every rank, after the same steps."""
        self._fold()
        if self._steps == 0:
            raise ValueError("an interval without a step has no means; add() steps before close()")
        if both := sorted(set(self._sums) & set(self._values)):
            raise ValueError(f"{both}: both a sum over samples and a value; rename one")
        packed = torch.stack(list(self._sums.values()))
        reduce_sum = sum_reducer(self.world.group)
        packed = packed if reduce_sum is None else reduce_sum(packed)
        # The counts and the values are those of all ranks already.
        beside = [total / steps for total, steps in self._values.values()]
        count = torch.as_tensor(self._count, dtype=packed.dtype, device=packed.device)
        *found, samples = torch.cat([packed / count, torch.stack([*beside, count])]).tolist()
        metrics = dict(zip([*self._sums, *self._values], found, strict=True)) if samples else {}
        means = Means(metrics, self._steps, samples, time.perf_counter() - self._since)
        self._reset()
        return means

    def _fold(self) -> None:
        """Sums up what is pending, in float64 on the device; names in one order on all ranks."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        self._steps += len(pending)
        taken = None if pending[0].taken is None else torch.stack([result.taken for result in pending])
        for name in sorted(pending[0].sums):
            self._sums[name] = self._sums.get(name, 0.0) + _sum([result.sums[name] for result in pending], taken)
        for name in sorted({name for result in pending for name in result.values} | {"grad_norm"}):
            each = [result.grad_norm if name == "grad_norm" else result.values.get(name) for result in pending]
            places = [place for place, value in enumerate(each) if value is not None]
            mask = None if taken is None else taken[places]
            total, steps = self._values.get(name, (0.0, 0))
            added = _sum([each[place] for place in places], mask)
            self._values[name] = (total + added, steps + (len(places) if mask is None else mask.sum()))
        counts = [torch.as_tensor(result.total, device=pending[0].grad_norm.device) for result in pending]
        self._count = self._count + _sum(counts, taken)


def _sum(values: list[Tensor], taken: Tensor | None) -> Tensor:
    """The sum of scalars in float64, or float32 where the device has no float64; of the steps that were taken."""
    stacked = torch.stack(values).to(torch.float32 if values[0].device.type == "mps" else torch.float64)
    # Not a product: what was not taken may be NaN.
    return (stacked if taken is None else torch.where(taken, stacked, 0.0)).sum()


class RunLog:
    """All that a run writes beside its weights; used as a context. ``folder`` is the run directory."""

    def __init__(
        self, folder: Path, plan: Plan, world: World, progress: Progress, heartbeat: Heartbeat, step: int = 0
    ) -> None:
        self.folder, self.world = folder, world
        self._lines, self._progress, self._heartbeat = RankLog(folder, world.rank), progress, heartbeat
        self._interval, self._lr, self._step, self._stopped = Interval(world), math.nan, step, ""
        self._scalars: Any = None
        self.event("start", pid=os.getpid(), launcher=world.launcher, **dataclasses.asdict(place(world)))
        self.event("plan", **dataclasses.asdict(plan))

    @classmethod
    def start(cls, config: Config, plan: Plan, world: World, *, folder: Path | None = None, step: int = 0) -> RunLog:
        """Writes the configuration and prints the plan, on rank zero. step: where it begins. Collective: every rank."""
        if config.log.tensorboard and importlib.util.find_spec("tensorboard") is None:
            raise ConfigError("log.tensorboard needs the package: pip install 'validate-ddp[tensorboard]'")
        folder = folder or run_folder(config, world)
        progress = Progress(plan.optimizer_steps, shown=world.is_main)
        places = gather_objects(place(world), world.group)
        if world.is_main:
            written = json.dumps(dataclasses.asdict(config), indent=2, ensure_ascii=False)
            (folder / "config.json").write_text(written + "\n", encoding="utf-8")
            shown = [table_of_places(places)] if world.size > 1 else []
            progress.print(f"run directory {folder} ({world_in_words(world)})", *shown, table(plan))
        # By rank zero's clock: it tells the ranks of this start from files that an earlier one has left.
        started = broadcast_object(round(time.time(), 3), world.group)
        total, interval = plan.optimizer_steps, config.log.heartbeat
        heartbeat = Heartbeat(folder, world, interval=interval, started=started, total=total, step=step)
        log = cls(folder, plan, world, progress, heartbeat, step)
        if config.log.tensorboard and world.is_main:
            from torch.utils.tensorboard import SummaryWriter

            # What an earlier start has written after its checkpoint does not count any more.
            log._scalars = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)
        for line in mismatches(places):
            log.warning(line)
        return log

    def doing(self, what: str) -> AbstractContextManager[None]:
        """Something between steps, for those who watch: "evaluating", "saving". Local."""
        return self._heartbeat.doing(what)

    def add(self, result: StepResult, *, lr: float) -> None:
        """Takes in a step. lr: the learning rate that it was made with. Local."""
        self._interval.add(result)
        self._heartbeat.advance()
        self._lr = lr

    def interval(self, step: int) -> dict[str, float]:
        """Writes and returns the means since the last call. step: optimizer steps done. Collective: every rank."""
        means, self._step, device = self._interval.close(), step, self.world.device
        rate = means.samples / means.seconds if means.seconds > 0 else math.inf
        said: dict[str, Any] = {"lr": self._lr, "samples_per_second": rate}
        # The most that this rank has used so far: of the GPU, else of the process.
        memory = int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else peak_memory()
        more = {"steps": means.steps, "seconds": means.seconds, "memory_bytes": memory}
        self._lines.write("interval", step, metrics=means.metrics, **said, **more)
        self._progress.step(step, means.metrics, **said)
        self._heartbeat.say(metrics=means.metrics, **said)
        self._scalar("training", step, {**means.metrics, **said})
        return means.metrics

    def evaluation(self, step: int, data: str, metrics: dict[str, float]) -> None:
        """Writes the means of an evaluation. Local."""
        self._step = step
        self._lines.write("evaluation", step, data=data, metrics=metrics)
        self._progress.evaluation(step, data, metrics)
        self._heartbeat.evaluated(data, step, metrics)
        self._scalar(data, step, metrics)
        if self._interval.is_empty:
            self._interval.restart_clock()

    def _scalar(self, data: str, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items() if self._scalars is not None else ():
            self._scalars.add_scalar(f"{data}/{name}", value, step)

    def tell(self, event: str, line: str) -> None:
        """Prints a line on rank zero, and writes it as an event. Local; every rank."""
        self.event(event, message=line)
        self.show(line)

    def warning(self, line: str) -> None:
        """The same, of what is not as it should be. Local; every rank."""
        self.tell("warning", line)

    def note(self, line: str) -> None:
        """The same, of what is as it should be. Local; every rank."""
        self.tell("note", line)

    def stopped(self, line: str) -> None:
        """A warning, and that the run ends before the end of its plan. Local; every rank."""
        self._stopped = line
        self.warning(line)

    def show(self, text: str) -> None:
        """Prints on rank zero, beside the progress. Local."""
        self._progress.print(text)

    def weights(self, step: int, sha256: str) -> None:
        """Writes what this rank's weights have come to after a step: equal where they are, bit by bit. Local."""
        self._step = step
        self.event("weights", sha256=sha256)
        self.show(f"weights after step {step}: sha256 {sha256}")

    def event(self, event: str, **fields: Any) -> None:
        """Writes something that happened. Local."""
        self._lines.write("event", self._step, event=event, **fields)

    def __enter__(self) -> RunLog:
        self._progress.start()
        self._heartbeat.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._progress.stop()
        if kind is None:
            self.event("end")
            self._heartbeat.end("stopped" if self._stopped else "finished", self._stopped)
        else:
            self.event("error", type=kind.__name__, message=str(error))
            self._heartbeat.end("failed", ": ".join([kind.__name__, *str(error).strip().splitlines()[:1]]))
        self._lines.close()
        if self._scalars is not None:
            self._scalars.close()


def world_in_words(world: World) -> str:
    """Such as "2 ranks on cpu, torchrun"."""
    return f"{world.size} rank{'s' * (world.size > 1)} on {world.device.type}, {world.launcher}"


def run_folder(config: Config, world: World) -> Path:
    """The run directory, made by rank zero, agreed upon by all. Collective: every rank.

    ``ConfigError`` where it cannot be made, or holds a run and the configuration says to begin anew.
    """

    def make() -> Path:
        stem, number = config.run_dir or f"runs/{time.strftime('%Y%m%d-%H%M%S')}", 1
        folder = Path(stem)
        if config.run_dir and config.checkpoint.resume == "none" and (folder / "metrics").exists():
            raise ConfigError(f'run_dir {folder} holds a run already and checkpoint.resume is "none"; give another one')
        while True:
            try:
                folder.mkdir(parents=True, exist_ok=bool(config.run_dir))
                return folder
            except OSError as error:
                if isinstance(error, FileExistsError) and not config.run_dir:  # another run of this second
                    number += 1
                    folder = Path(f"{stem}-{number}")
                    continue
                told = f"the run directory {error.filename or folder} cannot be made: {error.strerror or error}"
                raise ConfigError(f"{told}; give another one as run_dir") from error

    return from_rank_zero(make, world)
