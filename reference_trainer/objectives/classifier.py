"""A frozen classifier of digits, for objectives that build on one: trained here, or loaded; the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checkpoint import weights
from ..checkpoint.directory import CheckpointError, latest, told
from ..config import Config
from ..core.save import replace
from ..launch import World
from ..precision import Precision
from ..randomness import seed_of
from ..rendezvous import from_rank_zero
from ..sources import CLASSES, PIXELS


class Read(NamedTuple):
    """What a classifier computes, a row a sample."""

    features: Tensor  # (n, width of the last hidden layer)
    logits: Tensor  # (n, 10)


class Classifier(nn.Module):
    """An MLP that reads the digit of an image, or of anything else with 64 values."""

    def __init__(self, hidden: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(*each), nn.ReLU()) for each in pairwise([PIXELS, *hidden]))
        self.head = nn.Linear(hidden[-1], CLASSES)

    def forward(self, x: Tensor) -> Read:
        """x: (n, 64)."""
        features = self.before(x, len(self.layers))
        return Read(features, self.head(features))

    def before(self, x: Tensor, layer: int) -> Tensor:
        """x (n, 64) to the activations after ``layer`` hidden layers, (n, width)."""
        for each in self.layers[:layer]:
            x = each(x)
        return x

    def after(self, activation: Tensor, layer: int) -> Tensor:
        """Activations after ``layer`` hidden layers, (n, width), to logits, (n, 10)."""
        for each in self.layers[layer:]:
            activation = each(activation)
        logits: Tensor = self.head(activation)
        return logits


class Recipe(NamedTuple):
    """Where a frozen classifier comes from: a file, or training on all samples at once."""

    name: str  # What it is to the objective: its file's name in the run directory, and the name of its setting.
    path: str  # Of its weights; "" to train it.
    hidden: tuple[int, ...]
    steps: int

    def frozen(self, config: Config, world: World, samples: Callable[[], tuple[Tensor, Tensor]]) -> Classifier:
        """The classifier on this rank's device, in evaluation mode. samples: inputs (n, 64), digits (n,). Collective.

        Rank zero loads or trains, and sends the weights to all: other machines would train other last bits.
        """
        with torch.random.fork_rng([]):
            torch.manual_seed(seed_of(config.seed, self.name))
            model = Classifier(self.hidden).to(Precision.of(config.precision).weights)

        def make() -> dict[str, Tensor]:
            kept, setting = Path(config.run_dir, f"{self.name}.safetensors"), f"{config.objective}.{self.name}"
            # What is kept counts for a run that goes on: one that begins anew may be another.
            if self.path or (config.run_dir and kept.is_file() and latest(Path(config.run_dir))):
                try:  # also out of a run of `distillation` or `lens`
                    weights.initialise(model, Path(self.path) if self.path else kept, parts=("student", "backbone"))
                except CheckpointError as error:
                    raise CheckpointError(f"{setting}: {error}; {setting}_hidden must describe it") from error
            else:
                fit(model, *samples(), steps=self.steps)
            found: dict[str, Tensor] = model.state_dict()
            return found

        model.load_state_dict(from_rank_zero(make, world))
        return model.to(world.device).requires_grad_(False).eval()

    def leave(self, model: Classifier, folder: Path) -> None:
        """Writes what was trained here to the run directory: a run that goes on takes it from there. Rank zero only."""
        path = folder / f"{self.name}.safetensors"
        if not self.path:
            with told(path, "cannot be written"):
                replace(path, lambda beside: weights.write_file(model.state_dict(), beside))


def fit(model: Classifier, inputs: Tensor, digits: Tensor, *, steps: int) -> None:
    """Trains a classifier on all samples at once: nothing is drawn, so it depends on its first weights alone. Local."""
    inputs, optimizer = inputs.to(model.head.weight.dtype), torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        F.cross_entropy(model(inputs).logits, digits).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
