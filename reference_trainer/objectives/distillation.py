"""Distillation: a small classifier learns from the labels and from a frozen teacher's answers (arXiv:1503.02531) and
features, through a projection (arXiv:1412.6550) within the wrapped module. A checkpoint has the teacher's hash alone.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

from ..checkpoint.directory import CheckpointError, told
from ..checkpoint.weights import fingerprint
from ..config import Config, ConfigError, DistillationConfig
from ..core.objective import Batch, Forward, Loss, Objective
from ..launch import World
from ..randomness import keyed_uniform
from ..rendezvous import from_rank_zero
from ..sources import CLASSES, PIXELS, RENDERINGS, build_data
from .classifier import Classifier, Read, Recipe


def build(config: Config, world: World) -> Distillation:
    """The objective that the configuration describes. Collective: every rank."""
    section = config.distillation
    inputs = Prompts(seed=config.seed) if section.data == "prompts" else (lambda batch: batch.data["image"])
    hidden = from_rank_zero(lambda: read_student(Path(section.student)), world) if section.student else section.hidden
    student = Student(hidden, section.teacher_hidden[-1] if section.feature else 0)
    if not (section.soft or section.feature):
        return Distillation(section, student, None, inputs=inputs)

    def samples() -> tuple[Tensor, Tensor]:
        source = build_data(config).train
        index = torch.arange(len(source))
        batch = Batch(index, 0, 0, source.fetch(index, 0))
        return inputs(batch), batch.data["digit"]

    recipe = Recipe("teacher", section.teacher, section.teacher_hidden, section.teacher_steps)
    teacher = recipe.frozen(config, world, samples)
    return Distillation(section, student, teacher, inputs=inputs, keep=lambda to: recipe.leave(teacher, to))


class Outputs(NamedTuple):
    """What the student computes, a row a sample."""

    logits: Tensor  # (n, 10)
    projected: Tensor | None  # (n, width of the teacher's features): the student's, projected.


class Student(nn.Module):
    """The student and its projection to the teacher's features, of width ``projection`` (0: none): one module."""

    def __init__(self, hidden: tuple[int, ...], projection: int) -> None:
        super().__init__()
        self.student = Classifier(hidden)
        # Where it is not used it is not made: DDP would wait for its gradient.
        self.projection = nn.Linear(hidden[-1], projection) if projection else None

    def forward(self, x: Tensor) -> Outputs:
        """x: (n, 64)."""
        read = self.student(x)
        return Outputs(read.logits, None if self.projection is None else self.projection(read.features))


class Distillation(Objective):
    """Cross entropy with the labels, divergence from the teacher's softened answers, distance from its features.

    teacher: frozen, or None. inputs: what both read of a batch, (n, 64). keep: writes the teacher to a run directory.
    """

    def __init__(
        self,
        config: DistillationConfig,
        student: Student,
        teacher: Classifier | None,
        *,
        inputs: Callable[[Batch], Tensor],
        keep: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        self.config, self.module, self.teacher, self.inputs, self.keep = config, student, teacher, inputs, keep
        self.teacher_digest = None if teacher is None else fingerprint(teacher.state_dict())

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        losses, hits, _ = self.compared(forward, batch)
        loss = self.config.hard * losses["hard_loss"]
        for name in ("soft", "feature"):
            if f"{name}_loss" in losses:
                loss = loss + getattr(self.config, name) * losses[f"{name}_loss"]
        return Loss(loss, {name: value.detach() for name, value in losses.items()} | hits, {})

    def evaluate(self, module: Forward, batch: Batch) -> dict[str, Tensor]:
        """The losses, how often the student is right, and how often the teacher is."""
        losses, hits, taught = self.compared(module, batch)
        right = {} if taught is None else {"teacher_accuracy": (taught.logits.argmax(1) == batch.data["digit"]).sum()}
        return losses | hits | right

    def compared(self, forward: Forward, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor], Read | None]:
        """The losses, and how many samples the student has right, and as the teacher has; sums. What that said."""
        x, digit = self.inputs(batch), batch.data["digit"]
        out = forward(x)
        with torch.no_grad():
            taught: Read | None = None if self.teacher is None else self.teacher(x)
        losses = {"hard_loss": F.cross_entropy(out.logits, digit, reduction="sum")}
        said = out.logits.detach().argmax(1)
        hits = {"accuracy": (said == digit).sum()}
        if taught is not None:
            hits["agreement"] = (said == taught.logits.argmax(1)).sum()
            if self.config.soft:
                losses["soft_loss"] = softened_divergence(out.logits, taught.logits, self.config.temperature)
            if out.projected is not None:
                losses["feature_loss"] = (out.projected - taught.features).square().mean(1).sum()
        return losses, hits, taught

    def blocks(self) -> list[nn.Module]:
        return list(self.module.student.layers)

    def begin(self, folder: Path) -> None:
        self.keep(folder)

    def state_dict(self) -> dict[str, Any]:
        return {"teacher_sha256": self.teacher_digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes in nothing: refuses to go on with another teacher."""
        if state["teacher_sha256"] != self.teacher_digest:
            hint = "give the old one as distillation.teacher, or begin anew in another run_dir"
            raise CheckpointError(f"the teacher is not the one that this run began with: another hash; {hint}")


def softened_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student) of softmax(logits / T), summed over samples; both (n, classes). Local."""
    found, wanted = (F.log_softmax(each / temperature, 1) for each in (student, teacher))
    return temperature**2 * F.kl_div(found, wanted, reduction="sum", log_target=True)


def read_student(path: Path) -> tuple[int, ...]:
    """The widths of the student's hidden layers from a YAML file; ``ConfigError`` in one line. Local."""
    shown = f"distillation.student: {path}"
    try:
        with told(shown):
            settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown} is no YAML: {' '.join(str(error).split())}") from error
    hidden = settings["hidden"] if isinstance(settings, dict) and set(settings) == {"hidden"} else None
    if not (isinstance(hidden, list) and hidden and all(type(width) is int and width > 0 for width in hidden)):
        raise ConfigError(f"{shown} must have hidden alone, a list of widths above 0 such as [24], not {settings!r}")
    return tuple(hidden)


_WORDS = ("zero one two three four five six seven eight nine".split(), ("tiny", "small", "large", "huge"))
_VERBS, _WORDINGS = ("drawn", "written", "painted", "printed"), 16


def prompt(digit: int, rendering: int, wording: int) -> str:
    """Such as "a tiny turned seven, drawn in white". wording: 0..15. Local."""
    turned, color = "turned " * (rendering >> 1), "black" if rendering & 1 else "white"
    return f"a {_WORDS[1][wording % 4]} {turned}{_WORDS[0][digit]}, {_VERBS[wording // 4]} in {color}"


def hashed(text: str) -> Tensor:
    """How often the trigrams of a text fall on each of 64 places, (64,), as a vector of length 8. Local."""
    places = [zlib.crc32(text[start : start + 3].encode()) % PIXELS for start in range(len(text) - 2)]
    counts = torch.bincount(torch.tensor(places), minlength=PIXELS).float()
    return counts * (PIXELS**0.5 / counts.norm())


class Prompts:
    """In place of images, each sample's prompt as hashed character trigrams; its wording belongs to (seed, sample)."""

    def __init__(self, *, seed: int) -> None:
        self.seed = seed
        kinds = itertools.product(range(CLASSES), range(RENDERINGS), range(_WORDINGS))
        self.table = torch.stack([hashed(prompt(*kind)) for kind in kinds]).view(CLASSES, RENDERINGS, _WORDINGS, PIXELS)

    def __call__(self, batch: Batch) -> Tensor:
        """(n, 64), on the batch's device and in its type. Local."""
        wording = (keyed_uniform(batch.index, seed=self.seed, tag="wording") * _WORDINGS).long()
        self.table = self.table.to(batch.data["image"])
        return self.table[batch.data["digit"], batch.data["rendering"], wording]
