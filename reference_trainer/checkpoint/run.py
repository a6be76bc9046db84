"""The checkpoints of one run: rank zero holds the lock, decides and writes; all read; errors are raised on all."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..config import Config
from ..core.collectives import gather_objects
from ..launch import World
from ..randomness import rng_state, seed_generators, seed_of, set_rng_state
from ..rendezvous import alike, from_rank_zero
from ..state import Best, TrainState
from . import weights
from .directory import CheckpointError, Directory, RunLock, told
from .snapshot import Snapshot, described, refuse_another_run

if TYPE_CHECKING:
    from ..core.plan import Plan


class RunCheckpoints:
    """RUN/checkpoints, locked for this job while the context lasts. Every method is collective: every rank."""

    def __init__(self, folder: Path, config: Config, plan: Plan, world: World) -> None:
        self.config, self.plan, self.world = config, plan, world
        self.directory = Directory(folder / "checkpoints")
        self._lock: RunLock | None = None
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        with alike(world, CheckpointError):
            if world.is_main:
                self._lock = RunLock(folder)
                self.directory.clean()

    def __enter__(self) -> RunCheckpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.shutdown()
        if self._lock is not None:
            self._lock.release()

    def begin(self, state: TrainState) -> Path | None:
        """Puts the run where it is to begin; returns the checkpoint it goes on from, the latest whole one, or None."""
        path = self._choose()
        if path is None and self.config.checkpoint.init_from:
            source = Path(self.config.checkpoint.init_from)
            with alike(self.world, CheckpointError):
                weights.initialise(state.objective.module, source)
            if state.ema is not None:
                state.ema.reset(state.objective.module)
            self._say(f"weights from {source}")
        if path is None:
            return None
        with alike(self.world, CheckpointError):
            snapshot = Snapshot.read(path)
            refuse_another_run(snapshot.training["run"], described(self.config, self.plan, state.objective), path)
        self._restore(state, snapshot)
        self._say(f"resumed from {path}, after step {state.step} of {self.plan.optimizer_steps}")
        with alike(self.world, CheckpointError), told(self.directory.folder, "cannot be tidied"):
            if self.world.is_main:
                for name in self.directory.set_aside(state.step):
                    self._say(f"{name} is what was saved after that; it is kept and no longer counts")
                if path.parent.resolve() == self.directory.folder.resolve():
                    self.directory.point("latest", state.step)
                    self.directory.point("best", state.best.step if state.best else None)
        return path

    def save(self, state: TrainState, *, wait: bool = True) -> None:
        """Saves the run as it is now, once for each step; ``CheckpointError`` on all ranks where that fails.

        wait: until it is written; else it is written beside training, and the next call tells whether it was.
        """
        self.settle()
        rng = gather_objects(rng_state(self.world.device), self.world.group)
        with alike(self.world, CheckpointError):
            if self.world.is_main:
                write = self._prepared(state, rng, copied=not wait)
                if wait:
                    write()
                else:
                    self._writing = self._beside.submit(write)

    def settle(self) -> None:
        """Waits for what is being written; ``CheckpointError`` on all ranks where that fails."""
        writing, self._writing = self._writing, None
        with alike(self.world, CheckpointError):
            if writing is not None:
                writing.result()

    def is_best(self, state: TrainState, metrics: dict[str, float]) -> bool:
        """Whether these metrics are the best so far; then the state remembers them. Equal on all ranks."""
        name, sign = self.config.checkpoint.best, -1 if self.config.checkpoint.best_mode == "max" else 1
        if name and name not in metrics:
            raise CheckpointError(f"checkpoint.best is {name!r}; the evaluation has {', '.join(sorted(metrics))}")
        value, best = metrics.get(name, math.nan), state.best
        # A NaN is better than nothing only, and never keeps a number out.
        better = best is None or sign * value < sign * best.value or (math.isnan(best.value) and not math.isnan(value))
        if name and better:
            state.best = Best(value, state.step)
        return bool(name) and better

    def _prepared(self, state: TrainState, rng: list[dict[str, object]], *, copied: bool) -> Callable[[], None]:
        """What writes the files and pointers. copied: the state may move before it is called. Rank zero only."""
        best, step, training = state.best.step if state.best else None, state.step, dict[str, Any]()
        # This run's own, of this step, if it is there: `begin` has set all others aside.
        written = any(path.name == f"step-{step:08}" for path in self.directory.all())
        if not written:
            training = state.state_dict() | {"rng": rng, "threads": torch.get_num_threads()}
            training["run"] = described(self.config, self.plan, state.objective)
        if copied:  # on the CPU
            training = tree_map(lambda each: each.to("cpu", copy=True) if isinstance(each, Tensor) else each, training)

        def write() -> None:
            if not written:
                model, ema = training.pop("model"), training.pop("ema")
                self.directory.write(step, self.world.size, Snapshot(model, ema, training).write)
            with told(self.directory.folder, "cannot be tidied"):
                if self.config.checkpoint.best:
                    self.directory.point("best", best)
                self.directory.prune(self.config.checkpoint.keep)

        return write

    def _choose(self) -> Path | None:
        return from_rank_zero(self._first_whole, self.world, CheckpointError)

    def _first_whole(self) -> Path | None:
        candidates = self.directory.candidates(self.config.checkpoint.resume)
        for path in candidates:
            try:
                Snapshot.read(path)
                return path
            except CheckpointError as error:
                if self.config.checkpoint.resume != "auto" and len(candidates) == 1:
                    raise  # this one was asked for
                self._say(f"{error}; the checkpoint before it is taken")
        if candidates:
            hint = "has no checkpoint that is whole; begin anew in another run_dir"
            raise CheckpointError(f"{self.directory.folder} {hint}")
        return None

    def _restore(self, state: TrainState, snapshot: Snapshot) -> None:
        training, rank, size = snapshot.training, self.world.rank, self.world.size
        state.load_state_dict({**training, "model": snapshot.model, "ema": snapshot.ema})
        saved = training["rng"]
        if rank < len(saved):
            set_rng_state(saved[rank], self.world.device)
        else:
            seed_generators(seed_of(self.config.seed, "rank", rank, "step", state.step))
        if size != len(saved):
            new = f"; the random numbers of ranks {len(saved)} to {size - 1} begin anew" if size > len(saved) else ""
            self._say(f"saved by {len(saved)} ranks, goes on with {size}: equal but for rounding{new}")
        elif training["threads"] != torch.get_num_threads():
            # Sums are split over threads: with another number their last bits differ.
            self._say(f"{training['threads']} threads a rank, as it was saved, in place of {torch.get_num_threads()}")
            torch.set_num_threads(training["threads"])

    def _say(self, text: str) -> None:
        if self.world.is_main:
            print(f"checkpoint: {text}", file=sys.stderr, flush=True)
