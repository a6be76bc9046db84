"""Two encoders that are to know nothing of each other: the digit in one, its rendering in the other.

A decoder that rebuilds the image from both makes each carry what belongs to the other (a leak); CLUB pushes it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ClubConfig, Config, DisentangleConfig
from ..core.objective import Batch, Forward, Loss, Objective
from ..estimator import CLUBLoss, mlp
from ..launch import World
from ..randomness import keyed_normal
from ..sources import CLASSES, PIXELS, RENDERINGS


def build(config: Config, world: World) -> Disentangle:
    """The objective that the configuration describes. Collective: every rank."""
    return Disentangle(config.disentangle, config.club, world, seed=config.seed)


class Outputs(NamedTuple):
    """What the module computes, a row a sample."""

    task: Tensor  # (n, features), noise added.
    embodiment: Tensor  # (n, features), noise added.
    digit: Tensor  # (n, 10) logits, read from ``task``.
    rendering: Tensor  # (n, 4) logits, read from ``embodiment``.
    image: Tensor  # (n, 64), rebuilt from both.


class Disentangler(nn.Module):
    """Both encoders, both heads and the decoder: one module, so that one wrapper averages all gradients."""

    def __init__(self, config: DisentangleConfig) -> None:
        super().__init__()
        widths = [PIXELS, *config.hidden, config.features]
        # Their features have mean 0 and variance 1: so noise of a given size hides a given amount.
        self.task, self.embodiment = (
            nn.Sequential(*mlp(widths), nn.LayerNorm(config.features, elementwise_affine=False)) for _ in range(2)
        )
        self.digit = nn.Linear(config.features, CLASSES)
        self.rendering = nn.Linear(config.features, RENDERINGS)
        self.decoder = mlp([2 * config.features, *reversed(config.hidden), PIXELS])

    def forward(self, image: Tensor, task_noise: Tensor, embodiment_noise: Tensor) -> Outputs:
        """image (n, 64), noise (n, features) each."""
        task = self.task(image) + task_noise
        embodiment = self.embodiment(image) + embodiment_noise
        rebuilt = self.decoder(torch.cat([task, embodiment], dim=1))
        return Outputs(task, embodiment, self.digit(task), self.rendering(embodiment), rebuilt)


class Disentangle(Objective):
    """Cross entropy of both heads, squared error of the decoder summed over pixels, and CLUB(task; embodiment)."""

    betas = (0.5, 0.999)

    def __init__(self, config: DisentangleConfig, club: ClubConfig, world: World, *, seed: int) -> None:
        self.config, self.seed = config, seed
        self.module = Disentangler(config)
        # Made now and not when first used: its replicas are broadcast, and its optimizer belongs to the checkpoint.
        self.club = CLUBLoss(config.features, config.features, club, group=world.group) if club.enabled else None

    def prepare(self, forward: Forward, batches: Sequence[Batch], total: float | Tensor) -> None:
        """With accumulation: the estimator and the global means see all micro-batches before any has its loss."""
        if self.club is None:
            return
        self.club.begin_step(total)
        if len(batches) > 1 and self.club.config.accumulation == "union":
            with torch.no_grad():
                outputs = [self.forward(forward, batch) for batch in batches]
            self.club.begin([(each.task, each.embodiment) for each in outputs])

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        out = self.forward(forward, batch)
        losses = self.losses(out, batch)
        metrics = {name: value.detach() for name, value in losses.items()} | _hits(out, batch)
        if self.club is None:
            return Loss(self.total(losses), metrics, {})
        loss = self.total(losses) + self.club.weighted_part(out.task, out.embodiment)
        return Loss(loss, metrics, {"club": self.club.value})

    def rehearse(self, forward: Forward, batch: Batch) -> Tensor:
        """Without CLUB: the estimator sees nothing."""
        return self.total(self.losses(self.forward(forward, batch), batch))

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        return losses["digit_loss"] + losses["rendering_loss"] + self.config.reconstruction * losses["reconstruction"]

    def evaluate(self, module: Forward, batch: Batch) -> dict[str, Tensor]:
        """Losses and hits on noisy features, whose noise is keyed apart from training's."""
        out = self.forward(module, batch, tag="evaluation")
        return self.losses(out, batch) | _hits(out, batch)

    def forward(self, forward: Forward, batch: Batch, tag: str = "training") -> Outputs:
        """The module on a batch, with this step's noise: the same again, whenever it is called again."""
        image, shape = batch.data["image"], (2, self.config.features)
        keyed: dict[str, Any] = {"seed": self.seed, "tag": f"{tag} noise", "step": batch.step}
        noise = keyed_normal(batch.index, shape, dtype=image.dtype, **keyed) * self.config.noise
        out: Outputs = forward(image, *noise.unbind(1))
        return out

    def losses(self, out: Outputs, batch: Batch) -> dict[str, Tensor]:
        """Sums over the batch."""
        return {
            "digit_loss": F.cross_entropy(out.digit, batch.data["digit"], reduction="sum"),
            "rendering_loss": F.cross_entropy(out.rendering, batch.data["rendering"], reduction="sum"),
            "reconstruction": F.mse_loss(out.image, batch.data["image"], reduction="sum"),
        }

    def blocks(self) -> list[nn.Module]:
        return [self.module.task, self.module.embodiment, self.module.decoder]

    def state_dict(self) -> dict[str, Any]:
        return {} if self.club is None else {"club": self.club.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.club is not None:
            self.club.load_state_dict(state["club"])


def _hits(out: Outputs, batch: Batch) -> dict[str, Tensor]:
    names = ("digit", "rendering")
    return {f"{name}_accuracy": (getattr(out, name).detach().argmax(1) == batch.data[name]).sum() for name in names}
