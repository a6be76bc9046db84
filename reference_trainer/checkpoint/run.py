"""The checkpoints of one run: rank zero holds the lock, decides and writes; all read; errors are raised on all."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..config import Config, LoraConfig
from ..core.collectives import gather_objects
from ..core.save import load, write_pickle
from ..launch import World
from ..lora import adapter_settings, is_adapter, layers_of, merged
from ..randomness import rng_state, seed_generators, seed_of, set_rng_state
from ..rendezvous import alike, from_rank_zero
from ..settings import flat
from ..state import Best, TrainState
from . import weights
from .directory import NAME, CheckpointError, Directory, RunLock, told, verified

if TYPE_CHECKING:
    from ..core.plan import Plan


_TRAINING = "training.pt"
_MAY_CHANGE = set(
    "run_dir device steps epochs global_batch batch_size accumulation nonfinite log_every eval_every eval_batch "
    "data.workers data.pin_memory club.check_every activation_checkpointing flow_matching.sampling_steps "
    "distillation.teacher lens.backbone".split()
)
"""Settings that, as those of ``_SECTIONS``, leave a run what it was. Of batches and steps the plan counts; the hash of
the teacher is in the checkpoint, and so is the backbone."""
_SECTIONS = ("dist.", "checkpoint.", "log.", "profile.")
_PLANNED = {"samples": "data: samples", "effective_batch_size": "global_batch", "repeat": "repeat"}
_PLANNED |= {"drop_last": "drop_last"}


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint in memory, on the CPU."""

    model: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    training: dict[str, Any]  # The rest of `TrainState`, `rng` (a rank each), `threads`, `run` (see ``described``).

    @property
    def step(self) -> int:
        return int(self.training["step"])

    def write(self, folder: Path) -> None:
        """Writes the files, not yet synced. ``OSError`` where the file system refuses."""
        weights.write(self.model, folder / weights.MODEL)
        if self.ema is not None:
            weights.write(self.ema, folder / weights.EMA)
        write_pickle(self.training, folder / _TRAINING)

    @classmethod
    def read(cls, folder: Path) -> Snapshot:
        """The checkpoint, verified; ``CheckpointError`` names the file that is not what was written."""
        manifest = verified(folder)
        if not {weights.MODEL, _TRAINING} <= set(manifest["files"]):
            raise CheckpointError(f"{folder}: the manifest has no {weights.MODEL} or no {_TRAINING}")
        ema = weights.read(folder / weights.EMA) if weights.EMA in manifest["files"] else None
        training = load(folder / _TRAINING)
        if not isinstance(training, dict) or training.get("step") != manifest["step"]:
            raise CheckpointError(f"{folder / _TRAINING} does not belong to the manifest: another step")
        return cls(weights.read(folder / weights.MODEL), ema, training)


def _plain(config: Config) -> dict[str, Any]:
    """As it is read back: lists in place of tuples."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return found


def described(config: Config, plan: Plan, objective: object) -> dict[str, Any]:
    """What a run is, as plain data: its configuration, its plan in numbers, the type of its objective."""
    numbers = {name: getattr(plan, name) for name in (*_PLANNED, "optimizer_steps", "world_size")}
    return {"config": _plain(config), "plan": numbers, "objective": type(objective).__name__}


def refuse_another_run(saved: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Raises ``CheckpointError`` with the settings (as ``described``) for which going on would be another run."""
    before, after = flat(_plain(Config())) | flat(saved["config"]), flat(now["config"])
    names = [name for name in after if name not in _MAY_CHANGE and not name.startswith(_SECTIONS)]
    pairs = {name: (before.get(name), after[name]) for name in names}
    pairs |= {shown: (saved["plan"][name], now["plan"][name]) for name, shown in _PLANNED.items()}
    # Under a schedule that ends at zero, another length is another learning rate from here on.
    if (schedule := after["optim.schedule"]) not in ("constant", "step"):
        lengths = saved["plan"]["optimizer_steps"], now["plan"]["optimizer_steps"]
        pairs[f"steps (optim.schedule is {schedule})"] = lengths
    if pairs["objective"][0] == pairs["objective"][1]:
        pairs["objective"] = (saved["objective"], now["objective"])
    changed = "; ".join(f"{name} was {old!r} and is {new!r}" for name, (old, new) in pairs.items() if old != new)
    if changed:
        hint = "set it as it was, or begin anew in another run_dir (with these weights: checkpoint.init_from)"
        raise CheckpointError(f"{path} is of another run: {changed}; {hint}")


def export(source: Path, out: Path, *, ema: bool = False, lora: str | None = None) -> Path:
    """Writes the weights of a run or checkpoint to one .safetensors file; returns the checkpoint. Local.

    ema: the averaged weights. lora: "merged" into the weights, or "adapter": alone, in a folder that peft takes.
    """
    found = weights.find(source)
    found, folder = found.with_name(weights.EMA) if ema else found, found.parent
    if not found.is_file():
        raise CheckpointError(f"{found} is not there: the run has no moving average (ema.decay)")
    tensors = weights.foreign(found, {})
    if lora is not None and not (folder / NAME).is_file():
        raise CheckpointError(f"{source} is no run and no checkpoint: how LoRA is scaled stands in their settings")
    config = LoraConfig(**Snapshot.read(folder).training["run"]["config"]["lora"]) if lora else LoraConfig()
    if lora is not None and not config.rank:
        raise CheckpointError(f"{folder} was trained without LoRA (lora.rank is 0); export it without --lora")

    def fill(beside: Path) -> None:
        beside.mkdir()
        adapter = {f"base_model.model.{name}": each for name, each in tensors.items() if is_adapter(name)}
        weights.write(adapter, beside / "adapter_model.safetensors")
        settings = json.dumps(adapter_settings(config, layers_of(tensors)), indent=2)
        (beside / "adapter_config.json").write_text(settings + "\n", encoding="utf-8")

    if lora == "merged":
        for layer in layers_of(tensors):
            first, second = (tensors.pop(f"{layer}.lora_{which}.weight") for which in "AB")
            tensors[f"{layer}.weight"] = merged(tensors[f"{layer}.weight"], first, second, config.scale)
    weights.place(out, fill if lora == "adapter" else lambda beside: weights.write(tensors, beside))
    return folder


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
