"""Settings of the objective `lens`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .error import require

__all__ = ["LensConfig"]


@dataclass(frozen=True)
class LensConfig:
    """An encoder and a decoder that pass the activations of a frozen network, the backbone, through a narrow code."""

    backbone: str = ""
    """Weights of the backbone: a run, a checkpoint, or a file of any program, .safetensors or .pt. By default it is
    trained when the run begins, to read the digit, on the same samples."""
    backbone_hidden: tuple[int, ...] = (128, 64)
    """Widths of the backbone's hidden layers."""
    backbone_steps: int = 150
    """Steps of training the backbone, on all samples at once."""
    layer: int = 1
    """The activations that are looked at: those after this hidden layer of the backbone, from 1."""
    code: int = 8
    """Width of the code."""
    hidden: int = 64
    """Width of the hidden layer of encoder and decoder."""
    consistency: float = 1.0
    """Weight of how far the backbone's answer strays when it goes on from what was rebuilt (nats of KL divergence)."""
    train: tuple[Literal["encoder", "decoder"], ...] = ("encoder", "decoder")
    """The parts that are trained; the others are frozen, as the backbone always is."""
    encoder_lr: float = 1.0
    """The encoder's learning rate, as a factor of the run's."""
    decoder_lr: float = 1.0
    """The decoder's learning rate, as a factor of the run's."""
    encoder_weight_decay: float | None = None
    """The encoder's weight decay; by default the run's."""
    decoder_weight_decay: float | None = None
    """The decoder's weight decay; by default the run's."""

    def __post_init__(self) -> None:
        require(bool(self.backbone_hidden), "lens.backbone_hidden is empty; give at least one width")
        require(min(self.backbone_hidden) > 0, f"lens.backbone_hidden is {self.backbone_hidden}; each must be above 0")
        for name in ("backbone_steps", "code", "hidden", "encoder_lr", "decoder_lr"):
            value = getattr(self, name)
            require(value > 0, f"lens.{name} is {value}; it must be above 0")
        layers = len(self.backbone_hidden)
        require(0 < self.layer <= layers, f"lens.layer is {self.layer}; the backbone has 1 to {layers}")
        require(self.consistency >= 0, f"lens.consistency is {self.consistency}; it must not be negative")
        require(bool(self.train), "lens.train is empty: nothing is trained; give encoder, decoder or both")
        unknown = sorted(set(self.train) - {"encoder", "decoder"})
        require(not unknown, f"lens.train has {', '.join(unknown)}; it may have encoder and decoder")
        for name in ("encoder_weight_decay", "decoder_weight_decay"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"lens.{name} is {value}; it must not be negative")
