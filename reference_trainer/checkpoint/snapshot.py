"""What a checkpoint holds, to and from its files; whether a run may go on from it; what is exported of it. Local."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..config import Config, LoraConfig
from ..core.save import load, write_pickle
from ..lora import adapter_settings, is_adapter, layers_of, merged
from ..settings import flat
from . import weights
from .directory import NAME, CheckpointError, verified

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
