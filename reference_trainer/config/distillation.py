"""Settings of the objective `distillation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .error import require

__all__ = ["DistillationConfig"]


@dataclass(frozen=True)
class DistillationConfig:
    """A small classifier that learns from the labels and from a large one, the teacher."""

    data: Literal["digits", "prompts"] = "digits"
    """What both read: images, or prompts such as "a turned seven, drawn in white", as hashed trigrams."""
    hidden: tuple[int, ...] = (32,)
    """Widths of the student's hidden layers; the last one's output is what is matched with the teacher's."""
    student: str = ""
    """A YAML file that describes the student, in place of the above: `hidden`, a list of widths."""
    teacher: str = ""
    """Weights of the teacher: a run, a checkpoint, or a file of any program, .safetensors or .pt. By default it is
    trained when the run begins, on the same samples, and saved in the run directory."""
    teacher_hidden: tuple[int, ...] = (256, 128)
    """Widths of the teacher's hidden layers."""
    teacher_steps: int = 150
    """Steps of training the teacher, on all samples at once."""
    hard: float = 1.0
    """Weight of the cross entropy with the labels."""
    soft: float = 1.0
    """Weight of the divergence from the teacher's softened answers; times temperature squared, so that its gradient
    keeps its size."""
    temperature: float = 4.0
    """What both logits are divided by before they are compared."""
    feature: float = 0.1
    """Weight of the squared error between the student's features, projected, and the teacher's. The projection is part
    of what is trained; 0 has none. With `soft` 0 as well there is no teacher."""

    def __post_init__(self) -> None:
        known = ("digits", "prompts")
        require(self.data in known, f"distillation.data is {self.data!r}; it must be 'digits' or 'prompts'")
        for name in ("hidden", "teacher_hidden"):
            widths = getattr(self, name)
            require(bool(widths), f"distillation.{name} is empty; give at least one width")
            require(min(widths) > 0, f"distillation.{name} is {widths}; each width must be above 0")
        for name in ("hard", "soft", "feature"):
            value = getattr(self, name)
            require(value >= 0, f"distillation.{name} is {value}; it must not be negative")
        require(self.hard + self.soft > 0, "distillation.hard and distillation.soft are 0: nothing trains the answers")
        for name in ("teacher_steps", "temperature"):
            value = getattr(self, name)
            require(value > 0, f"distillation.{name} is {value}; it must be above 0")
