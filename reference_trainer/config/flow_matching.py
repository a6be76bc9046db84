"""Settings of the objective `flow_matching`."""

from __future__ import annotations

from dataclasses import dataclass

from .error import require

__all__ = ["FlowMatchingConfig"]


@dataclass(frozen=True)
class FlowMatchingConfig:
    """A small transformer that turns noise into digits (with `ema.decay`, the averaged weights draw better ones)."""

    width: int = 48
    """Features of a token. A digit is 16 tokens, patches of 2x2 pixels."""
    depth: int = 2
    """Blocks of attention and feed-forward."""
    heads: int = 4
    """Attention heads; they divide `width`."""
    sampling_steps: int = 40
    """Euler steps from noise to a digit, for the pictures."""

    def __post_init__(self) -> None:
        for name in ("width", "depth", "heads", "sampling_steps"):
            value = getattr(self, name)
            require(value > 0, f"flow_matching.{name} is {value}; it must be above 0")
        require(self.width % 2 == 0, f"flow_matching.width is {self.width}; it must be even")
        require(
            self.width % self.heads == 0,
            f"flow_matching.heads is {self.heads}; it must divide flow_matching.width, {self.width}",
        )
