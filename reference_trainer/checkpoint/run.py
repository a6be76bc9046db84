"""The checkpoints of one run: rank zero holds the lock and decides; each rank reads and writes its share."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_model_state_dict

from ..config import Config
from ..core.collectives import gather_objects
from ..core.plan import Plan
from ..launch import World, set_timeout
from ..randomness import rng_state, seed_generators, seed_of, set_rng_state
from ..rendezvous import alike, apart, from_rank_zero
from ..settings import flat
from ..state import Best, TrainState, local
from . import weights
from .directory import CheckpointError, Directory, lock, read, rest_of, told, write


def _plain(config: Config) -> dict[str, Any]:
    """As it is read back: lists in place of tuples."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return found


class RunCheckpoints:
    """RUN/checkpoints, locked for this job while the context lasts. Every method is collective: every rank."""

    def __init__(self, folder: Path, config: Config, plan: Plan, world: World) -> None:
        self.config, self.plan, self.world = config, plan, world
        self.directory = Directory(folder / "checkpoints")
        self.base: dict[str, Any] | None = None  # What is not saved, and where it is: path, names, hash.
        self._lock: int | None = None
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._stager = DefaultStager(StagingOptions(False, False, False, False))  # It uses its copies again.
        self._apart = apart(world, config.dist.start_timeout)  # For what is written beside training.
        with alike(world, CheckpointError):
            if world.is_main:
                self._lock = lock(folder)
                self.directory.clean()

    def __enter__(self) -> RunCheckpoints:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._beside.shutdown(wait=kind is None or self.world.size == 1)  # others may never write their share
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def begin(self, state: TrainState, *, to_train: bool = True) -> Path | None:
        """Puts the run where it is to begin; returns the checkpoint it goes on from, the latest whole one, or None.

        to_train: on the samples that it was trained on, in their order; ``CheckpointError`` where they are others.
        """
        path = self.directory.first_whole(self.config.checkpoint.resume, self.world, self._say)
        if path is None:
            if self.config.checkpoint.init_from:
                self._initialise(state, Path(self.config.checkpoint.init_from))
            return None
        rest = rest_of(path)
        with alike(self.world, CheckpointError):
            self._compare(rest, path, to_train)
        self.base = rest.get("base")
        if self.base:
            self._initialise(state, Path(self.base["path"]))
        self._restore(state, path, rest)
        self._say(f"resumed from {path}, after step {state.step} of {self.plan.optimizer_steps}")
        with alike(self.world, CheckpointError), told(self.directory.folder, "cannot be tidied"):
            if self.world.is_main:
                self.directory.set_aside(state.step)
        return path

    def save(self, state: TrainState, *, wait: bool = True) -> None:
        """Saves the run as it is now, once for each step; ``CheckpointError`` on all ranks where that fails.

        wait: until it is written; else it is written beside training, and the next call tells whether it was.
        """
        self.settle()
        set_timeout(self._apart, self.config.dist.train_timeout)  # that of the start was for the start
        step, best = state.step, state.best.step if state.best else None
        final, tensors, rest = self.directory.path(step), dict[str, Tensor](), dict[str, Any]()
        rng = gather_objects(rng_state(self.world.device), self.world.group)
        # This run's own, of this step, if it is there: `begin` has set all others aside.
        if not from_rank_zero(final.exists, self.world):
            tensors = {name: each for name, each in state.tensors().items() if name not in self._referred}
            rest = state.state_dict() | {"rng": rng, "threads": torch.get_num_threads(), "base": self.base}
            rest |= {"stream": self._stream, "config": _plain(self.config), "moments": bool(state.optimizer.state)}
        if not wait:
            tensors, rest = self._stager.stage(tensors), copy.deepcopy(rest)
        work = partial(self._write, final, tensors, rest, best)
        if wait:
            work()
        else:
            self._writing = self._beside.submit(work)

    def settle(self) -> None:
        """Waits for what is being written; ``CheckpointError`` on all ranks where that fails."""
        writing, self._writing = self._writing, None
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

    @property
    def _stream(self) -> dict[str, Any]:
        """What says which samples a step has: with another of these a run cannot go on where it was."""
        plan = self.plan
        known = {"samples": plan.samples, "repeat": plan.repeat, "drop_last": plan.drop_last}
        return known | {"seed": self.config.seed, "global_batch": plan.effective_batch_size}

    def _compare(self, rest: Mapping[str, Any], path: Path, to_train: bool) -> None:
        """Tells settings that have changed since; ``CheckpointError`` where the stream of samples has."""
        now = self._stream
        before = rest.get("stream", now)  # earlier ones did not tell it
        changed = [f"{name} was {before[name]} and is {now[name]}" for name in now if before[name] != now[name]]
        if changed and to_train:
            hint = "set it as it was, or begin anew in another run_dir (with these weights: checkpoint.init_from)"
            raise CheckpointError(f"{path} is of another run: {'; '.join(changed)}; {hint}")
        before = flat(rest["config"])
        for name, new in flat(_plain(self.config)).items():
            if name in before and before[name] != new and not name.startswith(("run_dir", "checkpoint.")):
                self._say(f"{name} was {before[name]!r} and is {new!r}")

    @property
    def _referred(self) -> set[str]:
        return {f"model.{name}" for name in (self.base or {"names": ()})["names"]}

    def _write(self, final: Path, tensors: dict[str, Tensor], rest: dict[str, Any], best: int | None) -> None:
        """Files and pointers; in a thread of its own where training goes on."""
        if rest:
            try:
                write(final, plainly(tensors), rest, self._apart)
            except CheckpointError as error:
                before = next((path.name for path in self.directory.all()), "none")
                raise CheckpointError(f"{error}; the latest checkpoint is {before}, as it was") from error
        with alike(self._apart, CheckpointError), told(self.directory.folder, "cannot be tidied"):
            if self.world.is_main:
                self.directory.keep(self.config.checkpoint.keep, best)

    def _initialise(self, state: TrainState, source: Path) -> None:
        """Weights from elsewhere: rank zero reads, and sends each rank what it holds of them."""
        module, found, base = state.objective.module, dict[str, Any](), self.base
        frozen = [name for name, each in module.named_parameters() if not each.requires_grad]
        with alike(self.world, CheckpointError):
            if self.world.is_main:
                found = weights.based(base, {}) if base else weights.fitting(module.state_dict(), source)
        if base is None and self.config.checkpoint.adapter_only:

            def make() -> dict[str, Any]:
                sha256 = weights.fingerprint({name: found[name] for name in frozen})
                return {"path": str(weights.find(source).resolve()), "names": frozen, "sha256": sha256}

            self.base = from_rank_zero(make, self.world)
        sent = self.world.group is not None
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=sent, strict=False)
        set_model_state_dict(module, found, options=options)
        if state.ema is not None:
            state.ema.reset(module)
        self._say(f"weights from {source}")

    def _restore(self, state: TrainState, path: Path, rest: dict[str, Any]) -> None:
        rank, size, saved = self.world.rank, self.world.size, rest["rng"]
        if rest["moments"]:  # the optimizer makes them at its first step; here, for them to be loaded
            get_optimizer_state_dict(state.objective.module, state.optimizer)
        read(path, {name: each for name, each in state.tensors().items() if name not in self._referred}, self._apart)
        state.load_state_dict(rest)
        if rank < len(saved):
            set_rng_state(saved[rank], self.world.device)
        else:
            seed_generators(seed_of(self.config.seed, "rank", rank, "step", state.step))
        if size != len(saved):
            new = f"; the random numbers of ranks {len(saved)} to {size - 1} begin anew" if size > len(saved) else ""
            self._say(f"saved by {len(saved)} ranks, goes on with {size}: equal but for rounding{new}")
        elif rest["threads"] != torch.get_num_threads():
            # Sums are split over threads: with another number their last bits differ.
            self._say(f"{rest['threads']} threads a rank, as it was saved, in place of {torch.get_num_threads()}")
            torch.set_num_threads(rest["threads"])

    def _say(self, text: str) -> None:
        if self.world.is_main:
            print(f"checkpoint: {text}", file=sys.stderr, flush=True)


def plainly(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As safetensors wants them: contiguous, and tied ones each with memory of its own. Local."""
    found, seen = dict[str, Tensor](), set[int]()
    for name, each in tensors.items():
        place = local(each).untyped_storage().data_ptr()
        copied = place in seen or not each.is_contiguous()
        found[name] = each.clone(memory_format=torch.contiguous_format) if copied else each
        seen.add(place)
    return found
