"""Every setting of a run, with its reason. Torch-free: `plan` and `--help` read it without importing torch.

A field's docstring is its help on the command line. A value that cannot work is refused here, by the field's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "CheckpointConfig",
    "ClubConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "DisentangleConfig",
    "DistConfig",
    "EmaConfig",
    "OptimConfig",
]


class ConfigError(ValueError):
    """A setting that cannot work; the message is one line: what, where, what to do."""


def _require(condition: bool, message: str) -> None:
    """Raises ``ConfigError`` with the message where the condition does not hold."""
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer (Adam, or AdamW with weight decay), its schedule and its gradient clip."""

    lr: float = 1e-3
    """Learning rate at `base_batch`, or at whatever batch this is if `lr_scaling` is "none"."""
    betas: tuple[float, float] = (0.5, 0.999)
    """Adam's averages. A first one of 0.5, not 0.9: the estimator of CLUB is a moving target."""
    weight_decay: float = 0.0
    """Decoupled (AdamW)."""
    clip: float | None = None
    """Largest norm of the averaged gradient; none by default."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up; "linear" and "cosine" end at zero."""
    warmup_steps: int = 0
    """Optimizer steps of linear warm-up from zero."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the learning rate grows with the effective batch, from `base_batch`."""
    base_batch: int = 256
    """The effective batch for which `lr` was chosen."""

    def __post_init__(self) -> None:
        _require(self.lr > 0, f"optim.lr is {self.lr}; it must be above 0")
        _require(all(0 <= beta < 1 for beta in self.betas), f"optim.betas are {self.betas}; each must be in [0, 1)")
        _require(self.weight_decay >= 0, f"optim.weight_decay is {self.weight_decay}; it must not be negative")
        _require(self.clip is None or self.clip > 0, f"optim.clip is {self.clip}; it must be above 0, or left out")
        _require(self.warmup_steps >= 0, f"optim.warmup_steps is {self.warmup_steps}; it must not be negative")
        _require(self.base_batch > 0, f"optim.base_batch is {self.base_batch}; it must be above 0")


@dataclass(frozen=True)
class EmaConfig:
    """An exponential moving average of the weights, used for evaluation and saved beside them."""

    decay: float = 0.0
    """Weight of the average at each step, such as 0.999; 0 keeps no average."""

    def __post_init__(self) -> None:
        _require(0 <= self.decay < 1, f"ema.decay is {self.decay}; it must be in [0, 1)")


@dataclass(frozen=True)
class DataConfig:
    """The data and its loader."""

    train_samples: int = 1000
    """Digits (of 1797) to train on."""
    validation_samples: int = 200
    """Digits for choosing settings; what is left is for the report."""
    workers: int = 0
    """Loader processes a rank. The digits lie in memory: none is fastest."""
    pin_memory: bool = False
    """Page-locked batches, for copies to a GPU beside the computation."""

    def __post_init__(self) -> None:
        _require(self.train_samples > 0, f"data.train_samples is {self.train_samples}; it must be above 0")
        _require(self.validation_samples >= 0, f"data.validation_samples is {self.validation_samples}; not negative")
        _require(self.workers >= 0, f"data.workers is {self.workers}; it must not be negative")


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
        _require(self.weight >= 0, f"club.weight is {self.weight}; it must not be negative")
        for name, known in (
            ("variance", ("bounded", "unit")),
            ("accumulation", ("union", "micro")),
            ("path", ("covariance", "gather")),
        ):
            value = getattr(self, name)
            _require(value in known, f"club.{name} is {value!r}; it must be {known[0]!r} or {known[1]!r}")
        _require(self.update_every > 0, f"club.update_every is {self.update_every}; it must be above 0")
        _require(self.inner_steps > 0, f"club.inner_steps is {self.inner_steps}; it must be above 0")
        _require(self.lr > 0, f"club.lr is {self.lr}; it must be above 0")
        _require(all(0 <= beta < 1 for beta in self.betas), f"club.betas are {self.betas}; each must be in [0, 1)")
        _require(all(width > 0 for width in self.hidden), f"club.hidden is {self.hidden}; each width must be above 0")
        _require(self.clip is None or self.clip > 0, f"club.clip is {self.clip}; it must be above 0, or left out")
        _require(self.warmup_steps >= 0, f"club.warmup_steps is {self.warmup_steps}; it must not be negative")
        _require(self.check_every >= 0, f"club.check_every is {self.check_every}; it must not be negative")


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
        _require(bool(self.hidden), "disentangle.hidden is empty; give at least one width")
        _require(min(self.hidden) > 0, f"disentangle.hidden is {self.hidden}; each width must be above 0")
        _require(self.features > 1, f"disentangle.features is {self.features}; it must be above 1")
        _require(self.noise >= 0, f"disentangle.noise is {self.noise}; it must not be negative")
        _require(self.reconstruction >= 0, f"disentangle.reconstruction is {self.reconstruction}; not negative")


@dataclass(frozen=True)
class DistConfig:
    """The process group."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """"auto": nccl where each rank has a GPU, else gloo."""
    start_timeout: float = 1800.0
    """Seconds to wait for all ranks, and for the first step: machines of a cluster do not start together."""
    train_timeout: float = 600.0
    """Seconds for a collective after the first step: shorter, so that a hang is told soon."""

    def __post_init__(self) -> None:
        _require(self.start_timeout > 0, f"dist.start_timeout is {self.start_timeout}; it must be above 0")
        _require(self.train_timeout > 0, f"dist.train_timeout is {self.train_timeout}; it must be above 0")


@dataclass(frozen=True)
class CheckpointConfig:
    """What is saved of a run, and where it begins."""

    save_every: int = 500
    """Optimizer steps between checkpoints; 0 saves at the end only, and where the run is told to stop."""
    keep: int = 2
    """The last checkpoints to keep, beside the best: with one alone, a damaged file is the loss of the run."""
    best: str = ""
    """Metric of the validation part, such as "digit_accuracy", whose best value gets a checkpoint that is kept."""
    best_mode: Literal["min", "max"] = "min"
    """Whether the best value is the least or the greatest."""
    resume: str = "auto"
    """"auto": go on from the latest whole checkpoint in `run_dir`, or begin where there is none. "none": begin, and
    refuse a `run_dir` with checkpoints. A path: go on from this checkpoint, and set aside what this run saved after it;
    one outside of `run_dir` counts while `run_dir` has none of its own, so that a job can be queued again as it was."""
    init_from: str = ""
    """Weights to begin with, if there is nothing to resume: a run, a checkpoint, or a file of any program, .safetensors
    or .pt, also with keys that begin with "module." or "_orig_mod."."""

    def __post_init__(self) -> None:
        _require(self.save_every >= 0, f"checkpoint.save_every is {self.save_every}; it must not be negative")
        _require(self.keep > 0, f"checkpoint.keep is {self.keep}; it must be above 0")
        _require(
            self.best_mode in ("min", "max"), f"checkpoint.best_mode is {self.best_mode!r}; it must be 'min' or 'max'"
        )
        _require(bool(self.resume), "checkpoint.resume is empty; it must be auto, none or the path of a checkpoint")


DEFAULT_STEPS, DEFAULT_GLOBAL_BATCH = 600, 256
"""What a run does that says neither: about ten seconds on a laptop."""


@dataclass(frozen=True)
class Config:
    """A run. The defaults train the disentangling objective on real digits in some seconds, on any number of ranks."""

    objective: Literal["disentangle"] = "disentangle"
    """What is trained."""
    run_dir: str = ""
    """Where everything of the run is written; by default a new folder under `runs/`."""
    seed: int = 0
    """Of the weights, the order of samples, and all noise on them."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """"auto": the GPU of this rank where there is one."""
    precision: Literal["float32", "float64"] = "float32"
    """Type of weights and computation; float64 is for comparing runs."""
    steps: int | None = None
    """Optimizer steps; this or `epochs`. By default 600."""
    epochs: int | None = None
    """Passes over the data; this or `steps`."""
    global_batch: int | None = None
    """Samples of an optimizer step, over all ranks and micro-steps; this or `batch_size`. By default 256."""
    batch_size: int | None = None
    """Samples of a micro-step on one rank; this or `global_batch`."""
    accumulation: int = 1
    """Micro-steps of an optimizer step."""
    drop_last: bool = False
    """Drop an epoch's last, incomplete global batch, instead of filling it from the epoch's start."""
    repeat: int = 1
    """How often a sample occurs in an epoch."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """A step whose loss or gradient is not finite is not taken. Then "stop", for it does not heal as a rule; or "skip",
    and go on: such a step counts as attempted, and advances neither the schedule nor the average."""
    log_every: int = 20
    """Optimizer steps between log lines."""
    eval_every: int = 0
    """Optimizer steps between evaluations; 0 evaluates once, at the end."""
    eval_batch: int = 512
    """Samples of an evaluation batch on one rank."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    data: DataConfig = field(default_factory=DataConfig)
    club: ClubConfig = field(default_factory=ClubConfig)
    disentangle: DisentangleConfig = field(default_factory=DisentangleConfig)
    dist: DistConfig = field(default_factory=DistConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        _require(
            self.steps is None or self.epochs is None,
            f"steps is {self.steps} and epochs is {self.epochs}; give one of them, the other follows from it",
        )
        _require(
            self.global_batch is None or self.batch_size is None,
            f"global_batch is {self.global_batch} and batch_size is {self.batch_size}; give one of them, "
            "the other follows from it",
        )
        for name in ("steps", "epochs", "global_batch", "batch_size"):
            value = getattr(self, name)
            _require(value is None or value > 0, f"{name} is {value}; it must be above 0")
        for name in ("accumulation", "repeat", "log_every", "eval_batch"):
            _require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; it must be above 0")
        _require(self.eval_every >= 0, f"eval_every is {self.eval_every}; it must not be negative")
        _require(
            not self.checkpoint.best or self.eval_every > 0,
            f"checkpoint.best is {self.checkpoint.best!r} and eval_every 0; set how often to evaluate",
        )

    @property
    def steps_or_default(self) -> int | None:
        """Optimizer steps, if `epochs` does not say how long the run is."""
        return DEFAULT_STEPS if self.steps is None and self.epochs is None else self.steps

    @property
    def global_batch_or_default(self) -> int | None:
        """Samples of an optimizer step, if `batch_size` does not say them."""
        return DEFAULT_GLOBAL_BATCH if self.global_batch is None and self.batch_size is None else self.global_batch
