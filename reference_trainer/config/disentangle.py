"""Settings of the objective `disentangle`, and of CLUB, which it lowers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .error import require

__all__ = ["ClubConfig", "DisentangleConfig"]


@dataclass(frozen=True)
class ClubConfig:
    """CLUB, the upper bound of mutual information that the objective lowers, and its estimator q(y|x)."""

    enabled: bool = True
    """Whether CLUB is in the loss; without it there is no estimator either."""
    weight: float = 0.1
    """Lambda, what CLUB is multiplied by in the loss. On the embedded digits the least leak of 0.01 to 1 on the
    validation part (`make demonstration`); the original's 1.0 drowns the task there."""
    variance: Literal["bounded", "unit"] = "bounded"
    """q's variance: "bounded" learns a log-variance within (-1, 1), as the original does: unbounded, a feature that can
    be predicted sends it, and the loss, to infinity. "unit" learns a mean only."""
    update_every: int = 1
    """Optimizer steps from one fit of q to the next. A q that lags behind its features reads too low."""
    inner_steps: int = 5
    """Gradient steps of q in a fit: the original's."""
    lr: float = 1e-3
    """Learning rate of q: the original's."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's averages for q: torch's."""
    hidden: tuple[int, ...] = (64,)
    """Widths of q's hidden layers, for mean and variance each. A q that is too small misses information."""
    clip: float | None = None
    """Largest norm of q's gradient; none by default, Adam bounds its steps."""
    warmup_steps: int = 0
    """Steps in which `weight` grows linearly from zero: a q that has learned nothing pushes in random directions."""
    unbiased: bool = False
    """Multiply by N / (N - 1): the batch's own pairs are among the N x N that are compared with. The paper does not."""
    symmetric: bool = False
    """The mean of both directions, with an estimator for each, at twice the cost."""
    accumulation: Literal["union", "micro"] = "union"
    """With several micro-steps: "union" gives CLUB of all their samples, exactly as one big batch would, for a second
    forward pass; "micro" the mean of the micro-batches' CLUBs, which is something else."""
    path: Literal["covariance", "gather"] = "covariance"
    """How ranks share: "covariance" sends a few means and no feature; "gather" sends all features, with gradient, and
    is there to compare with."""
    check_every: int = 100
    """Steps between checks that q is the same on all ranks and in good health; 0 never. Each waits for the device."""

    def __post_init__(self) -> None:
        require(self.weight >= 0, f"club.weight is {self.weight}; it must not be negative")
        for name, known in (
            ("variance", ("bounded", "unit")),
            ("accumulation", ("union", "micro")),
            ("path", ("covariance", "gather")),
        ):
            value = getattr(self, name)
            require(value in known, f"club.{name} is {value!r}; it must be {known[0]!r} or {known[1]!r}")
        require(self.update_every > 0, f"club.update_every is {self.update_every}; it must be above 0")
        require(self.inner_steps > 0, f"club.inner_steps is {self.inner_steps}; it must be above 0")
        require(self.lr > 0, f"club.lr is {self.lr}; it must be above 0")
        require(all(0 <= beta < 1 for beta in self.betas), f"club.betas are {self.betas}; each must be in [0, 1)")
        require(all(width > 0 for width in self.hidden), f"club.hidden is {self.hidden}; each width must be above 0")
        require(self.clip is None or self.clip > 0, f"club.clip is {self.clip}; it must be above 0, or left out")
        require(self.warmup_steps >= 0, f"club.warmup_steps is {self.warmup_steps}; it must not be negative")
        require(self.check_every >= 0, f"club.check_every is {self.check_every}; it must not be negative")


@dataclass(frozen=True)
class DisentangleConfig:
    """Two encoders, two heads and a decoder on the digits (CLUB between the encoders is `club`)."""

    hidden: tuple[int, ...] = (128, 64)
    """Widths of an encoder's hidden layers; the decoder's are the same in reverse."""
    features: int = 16
    """Width of each encoder's features."""
    noise: float = 0.5
    """Standard deviation of the noise on features: without it a bound on information can be evaded by scale."""
    reconstruction: float = 1.0
    """Weight of the squared error, summed over pixels. The decoder is what makes the encoders leak."""

    def __post_init__(self) -> None:
        require(bool(self.hidden), "disentangle.hidden is empty; give at least one width")
        require(min(self.hidden) > 0, f"disentangle.hidden is {self.hidden}; each width must be above 0")
        require(self.features > 1, f"disentangle.features is {self.features}; it must be above 1")
        require(self.noise >= 0, f"disentangle.noise is {self.noise}; it must not be negative")
        require(self.reconstruction >= 0, f"disentangle.reconstruction is {self.reconstruction}; not negative")
