"""A lens on a frozen network: its activations through a narrow code and back, so that it still says the same."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import Config, LensConfig
from ..core.objective import Batch, Forward, Loss, Objective
from ..estimator import mlp
from ..launch import World
from ..sources import build_data
from .classifier import Classifier, frozen

_PARTS = ("encoder", "decoder")


def build(config: Config, world: World) -> ConsistencyLens:
    """The objective that the configuration describes. Collective: every rank."""
    source, backbone = build_data(config).train, frozen("backbone", config.lens, config, world)
    images = source.fetch(torch.arange(len(source)), 0)["image"]
    return ConsistencyLens(config.lens, Lens(config.lens, backbone, images))


class Outputs(NamedTuple):
    """What the module computes, a row a sample."""

    activation: Tensor  # (n, width), standardised.
    rebuilt: Tensor  # (n, width), from the code.
    logits: Tensor  # (n, 10): the backbone's answer.
    through: Tensor  # (n, 10): its answer from ``rebuilt``.


class Lens(nn.Module):
    """Backbone, encoder and decoder in one module; what is frozen stays in evaluation mode. images: for the scale."""

    def __init__(self, config: LensConfig, backbone: Classifier, images: Tensor) -> None:
        super().__init__()
        self.layer, self.backbone = config.layer, backbone
        with torch.no_grad():
            seen = backbone.before(images.to(next(backbone.parameters())), config.layer)
        # One scale for all units: what varies little is to count little. Buffers: they belong to the weights.
        self.register_buffer("mean", seen.mean(0))
        self.register_buffer("scale", seen.var(0, correction=0).mean().sqrt())
        width = seen.shape[1]
        self.encoder = mlp([width, config.hidden, config.code], nn.GELU)
        self.decoder = mlp([config.code, config.hidden, width], nn.GELU)
        self.frozen = ["backbone", *(part for part in _PARTS if part not in config.train)]
        for part in self.frozen:
            getattr(self, part).requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Lens:
        """As of any module, but for the frozen parts."""
        super().train(mode)
        for part in self.frozen:
            getattr(self, part).eval()
        return self

    def forward(self, image: Tensor) -> Outputs:
        """image: (n, 64)."""
        with torch.no_grad():
            seen = self.backbone.before(image, self.layer)
            logits = self.backbone.after(seen, self.layer)
            activation = (seen - self.mean) / self.scale
        rebuilt = self.decoder(self.encoder(activation))
        return Outputs(activation, rebuilt, logits, self.backbone.after(rebuilt * self.scale + self.mean, self.layer))


class ConsistencyLens(Objective):
    """Squared error of what was rebuilt, a mean over units, and KL divergence of the backbone's answers."""

    def __init__(self, config: LensConfig, module: Lens) -> None:
        self.config, self.module = config, module

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        losses = self.losses(forward(batch.data["image"]))
        loss = losses["reconstruction"] + self.config.consistency * losses["consistency"]
        return Loss(loss, {name: value.detach() for name, value in losses.items()}, {})

    def evaluate(self, module: Forward, batch: Batch) -> dict[str, Tensor]:
        """The losses, the share of variance that the code keeps, and how often the backbone is right and agrees."""
        out, digit = module(batch.data["image"]), batch.data["digit"]
        found, through, said = self.losses(out), out.through.argmax(1), out.logits.argmax(1)
        return found | {
            # The activations are standardised: without a code, the error would be 1 over the training samples.
            "explained_variance": len(batch) - found["reconstruction"],
            "accuracy": (through == digit).sum(),
            "backbone_accuracy": (said == digit).sum(),
            "agreement": (through == said).sum(),
        }

    def losses(self, out: Outputs) -> dict[str, Tensor]:
        """Sums over the batch."""
        through, wanted = (F.log_softmax(each, 1) for each in (out.through, out.logits))
        return {
            "reconstruction": (out.rebuilt - out.activation).square().mean(1).sum(),
            "consistency": F.kl_div(through, wanted, reduction="sum", log_target=True),
        }

    def parameter_groups(self) -> list[dict[str, Any]]:
        """A group for each part that is trained, with its own learning rate."""
        groups: list[dict[str, Any]] = []
        for part in _PARTS:
            trained = [each for each in getattr(self.module, part).parameters() if each.requires_grad]
            groups += [{"params": trained, "lr_factor": getattr(self.config, f"{part}_lr")}] if trained else []
        return groups

    def blocks(self) -> list[nn.Module]:
        return [self.module.encoder, self.module.decoder]
