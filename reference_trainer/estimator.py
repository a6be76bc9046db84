"""CLUBLoss: CLUB between two sets of learned features, with the estimator q that it needs. For our loop and any other.

    club = CLUBLoss(x_dim, y_dim)                  # before training: q belongs to the checkpoint
    result = club(x, y)                            # fits q, then takes the loss; every rank, every step
    (task_loss + result.loss).backward()           # the weight is in it; log result.value, which is from before the fit

With accumulation, exactly: ``begin_step``, ``begin`` with all micro-batches' features, ``weighted_part`` times W / N.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from .config import ClubConfig
from .core.club import ClubError, ClubResult, Moments, Pairs, ReduceSum, covariance_sum_gaussian, moments_gaussian
from .core.collectives import WORLD, Group, all_gather_with_grad, broadcast_object, extremes, process_group, sum_reducer
from .variational import Estimator

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Rung:
    """The ranks over which DDP averages."""

    name: Literal["accelerator", "torch.distributed", "local"]
    rank: int = 0
    size: int = 1
    group: ProcessGroup | None = None

    @property
    def reduce_sum(self) -> ReduceSum | None:
        """The sum over its ranks; None alone."""
        return sum_reducer(self.group)

    def say(self, text: str) -> None:
        """Prints a line, on rank zero. Local."""
        if self.rank == 0:
            print(f"CLUB: {text}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        alone = self.name == "local"
        return "this process alone" if alone else f"{self.size} rank{'s' * (self.size > 1)}, as {self.name} has it"


AT_FLOOR = 0.01
"""Nats a dimension above its floor at which q's NLL counts as being there: a residual of 7 % of q's least spread."""
STALE = -0.1  # Nats a dimension below which CLUB counts as strongly negative: chance gives about -1 / sqrt(N d).


class CLUBLoss:
    """CLUB(x; y) with its estimator. Not a module: neither DDP nor the main optimizer may get q.

    group: the ranks over which DDP averages; WORLD looks for them at the first use, None is this process alone.
    Features are (n_r, ..., d), averaged over the dimensions between; n_r may differ between ranks and be 0.
    """

    def __init__(self, x_dim: int, y_dim: int, config: ClubConfig | None = None, *, group: Group = WORLD) -> None:
        self.config = config or ClubConfig()
        self.dims = (x_dim, y_dim)
        self.estimators = [Estimator(x_dim, y_dim, self.config)]
        if self.config.symmetric:
            self.estimators.append(Estimator(y_dim, x_dim, self.config))
        self.step = 0
        self.group = group
        self.accelerator: Any = None
        self._rung: Rung | None = None
        self._placed = self._synchronised = False
        self._said: set[str] = set()
        # Of the step that has begun.
        self._total: float | Tensor | None = None
        self._union: list[Moments] = []
        self._values: list[Tensor] = []
        # Of the last fit.
        self._before_fit: Tensor | None = None
        self._nll: list[Tensor] = []

    def set_accelerator(self, accelerator: Any) -> None:
        """For somebody else's Accelerate loop, before training. Local; every rank.

        Its backward divides the loss by its gradient_accumulation_steps: with several, CLUB of the union is refused.
        """
        steps = accelerator.gradient_accumulation_steps
        if steps > 1 and self.config.accumulation != "micro":
            told = 'CLUB of their union is out of reach; use ClubConfig(accumulation="micro"), the mean of their CLUBs'
            raise ClubError(
                f"the Accelerator accumulates {steps} micro-batches and divides each loss by {steps}: {told}"
            )
        if self._rung is not None and self._rung.name != "accelerator":
            raise ClubError(f"set_accelerator came too late: CLUB runs on {self._rung}; call it before the first use")
        if self.group != WORLD:
            raise ClubError("set_accelerator cannot replace the `group` that CLUBLoss was made with; give one of them")
        kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
        if kind != "NO" and not kind.startswith("MULTI_"):
            told = "CLUB knows only how DDP averages gradients (MULTI_GPU, MULTI_CPU)"
            raise ClubError(f"the Accelerator runs {kind}; {told}")
        self.accelerator = accelerator

    @property
    def rung(self) -> Rung:
        """The ranks that CLUB runs on, found at the first use. ``ClubError`` where that no longer holds. Local."""
        if self._rung is None:
            group = process_group(self.group)
            rank, size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
            if self.accelerator is not None and self.accelerator.num_processes != size:
                told = f"{self.accelerator.num_processes} processes and torch.distributed {size}"
                raise ClubError(f"the Accelerator has {told}; CLUB needs the group over which DDP averages")
            found: Literal["torch.distributed", "local"] = "local" if group is None else "torch.distributed"
            self._rung = Rung(found if self.accelerator is None else "accelerator", rank, size, group)
            searched = self._rung.name == "local" and self.group == WORLD
            why = " (no Accelerator given, torch.distributed not initialised)" if searched else ""
            self._rung.say(f"runs on {self._rung}{why}")
        elif self._rung.group is None and self.group == WORLD and process_group(WORLD) is not None:
            raise ClubError(
                "torch.distributed was initialised after CLUB had begun in this process alone; "
                "make the process group (or the Accelerator) before the first use of CLUBLoss"
            )
        return self._rung

    @property
    def due(self) -> bool:
        """Whether q is fitted in the step that has begun. Local."""
        return (self.step - 1) % self.config.update_every == 0

    @property
    def weight(self) -> float:
        """Lambda of the step that has begun. Local."""
        config = self.config
        return config.weight * (min(1.0, self.step / config.warmup_steps) if config.warmup_steps else 1.0)

    @property
    def value(self) -> Tensor:
        """CLUB of this step in nats, without the weight, the same on all ranks; the mean over micro-batches. Local."""
        if not self._values:
            raise ClubError("CLUB has no value in this step yet; take the loss first")
        return torch.stack(self._values).mean()

    # One batch a step.

    def __call__(self, x: Tensor, y: Tensor) -> ClubResult:
        """A whole step: the fit if it is due, and the loss. Collective: every rank, in every step."""
        self.begin_step()
        if self.due:
            self.fit(x, y)
        return self.loss(x, y)

    def fit(self, x: Tensor, y: Tensor) -> None:
        """Fits q to the features, which get no gradient. Collective: every rank, one without samples too."""
        x, y = self._features(x.detach(), y.detach())
        reduce_sum, pairs, self._nll = self.rung.reduce_sum, [], []
        for estimator, given, target in self._directions(x, y):
            before = estimator.fit(given, target, reduce_sum)
            pairs.append((before.mu, before.logvar, target))
            self._nll.append(before.nll)
        moments = _moments(pairs, reduce_sum)
        self._before_fit = _total(self._sum(pairs, moments), reduce_sum) / moments[0].count

    def loss(self, x: Tensor, y: Tensor) -> ClubResult:
        """Weight times CLUB, to be averaged by DDP; its ``value`` has no weight. Collective: every rank."""
        part, count = self._part(x, y)
        return ClubResult(self.weight * part * (self.rung.size / count), self.value)

    # Several micro-batches a step: sums, which the caller multiplies by W / N.

    def begin_step(self, total: float | Tensor | None = None) -> None:
        """Counts an optimizer step. total: what sums will be divided by, if not the samples of the step. Collective."""
        if self.config.check_every and self.step and self.step % self.config.check_every == 0:
            self.check()
        self.step += 1
        self._total, self._union, self._values, self._before_fit = total, [], [], None

    def begin(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Looks at the union of this rank's micro-batches: fits q on it, if due, and takes its means. Collective."""
        if self.config.accumulation == "micro" or self.config.path == "gather" or self.accelerator is not None:
            told = 'accumulation="union", path="covariance" and no Accelerator; without `begin` each stands for itself'
            raise ClubError(f"CLUB of the union of micro-batches needs {told}")
        features = [self._features(x.detach(), y.detach()) for x, y in batches]
        x, y = (torch.cat(each) for each in zip(*features, strict=True))
        if self.due:
            self.fit(x, y)
        with torch.no_grad():
            pairs = self._pairs(x, y)
            self._union = _moments(pairs, self.rung.reduce_sum)
            self._record(self._sum(pairs, self._union), self._union, self.rung.reduce_sum)

    def part(self, x: Tensor, y: Tensor) -> Tensor:
        """This rank's sum over a micro-batch, with graph; without ``begin`` it stands for itself. Collective."""
        return self._part(x, y, fit=True)[0]

    def weighted_part(self, x: Tensor, y: Tensor) -> Tensor:
        """``part`` times the weight, for a caller that divides by the ``total`` of ``begin_step``. As ``part``."""
        part, count = self._part(x, y, fit=True)
        if self._total is not None and self.config.accumulation == "union":
            part = part * (self._total / count).to(part.dtype)
        return self.weight * part

    def _part(self, x: Tensor, y: Tensor, *, fit: bool = False) -> tuple[Tensor, Tensor]:
        """The sum with graph, and N. fit: q first, where that is due and was not done on the union."""
        if fit and not self._union and self.due:
            self.fit(x, y)
        if self.step == 0:
            raise ClubError("no step has begun; call begin_step once per optimizer step, or call CLUBLoss itself")
        x, y = self._features(x, y)
        rung = self.rung
        if self.config.path == "gather":
            pairs = self._pairs(all_gather_with_grad(x, rung.group), all_gather_with_grad(y, rung.group))
            moments = _moments(pairs, None)
            whole = self._sum(pairs, moments)
            self._record(whole, moments, None)
            # Every rank has the whole sum, and the gather's backward pass adds up what all ask: a W-th each.
            return whole / rung.size, moments[0].count
        pairs = self._pairs(x, y)
        moments = self._union or _moments(pairs, rung.reduce_sum)
        part = self._sum(pairs, moments)
        if not self._union:
            self._record(part, moments, rung.reduce_sum)
        return part, moments[0].count

    def _pairs(self, x: Tensor, y: Tensor) -> list[Pairs]:
        return [(*estimator.frozen(given), target) for estimator, given, target in self._directions(x, y)]

    def _directions(self, x: Tensor, y: Tensor) -> list[tuple[Estimator, Tensor, Tensor]]:
        return [(each, *pair) for each, pair in zip(self.estimators, [(x, y), (y, x)], strict=False)]

    def _sum(self, pairs: Sequence[Pairs], moments: Sequence[Moments]) -> Tensor:
        sums = [covariance_sum_gaussian(*each, about) for each, about in zip(pairs, moments, strict=True)]
        count = moments[0].count
        return torch.stack(sums).mean() * (count / (count - 1) if self.config.unbiased else 1.0)

    def _record(self, part: Tensor, moments: Sequence[Moments], reduce_sum: ReduceSum | None) -> None:
        """Keeps the value: from before the fit, if there was one. Collective where there was none."""
        value, self._before_fit = self._before_fit, None
        self._values.append(_total(part, reduce_sum) / moments[0].count if value is None else value)

    def _features(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(n, d) each, in q's type; at the first use q is placed, and broadcast from rank zero."""
        shapes = (tuple(x.shape), tuple(y.shape))
        if x.dim() < 2 or y.dim() < 2 or (x.shape[-1], y.shape[-1]) != self.dims or len(x) != len(y):
            wanted = f"(n, ..., {self.dims[0]}) and (n, ..., {self.dims[1]}) with the same n, as CLUBLoss was made"
            raise ClubError(f"features are {shapes[0]} and {shapes[1]}; expected {wanted}")
        for shape in shapes:
            if len(shape) > 2:
                self._say_once(f"features (N, {str(shape[1:])[1:]} are averaged to (N, {shape[-1]})", repr(shape[1:]))
        if not self._placed:
            for estimator in self.estimators:
                estimator.place(x.device, torch.promote_types(x.dtype, y.dtype))
            self._placed = True
        if not self._synchronised:
            self._synchronise()
        kind = self.estimators[0].dtype
        return _pooled(x.to(kind)), _pooled(y.to(kind))

    # State, and its equality on all ranks.

    def state_dict(self) -> dict[str, Any]:
        """q, its optimizer and the step. Local: equal on all ranks, so rank zero's is enough for a checkpoint."""
        return {"step": self.step, "estimators": [each.state_dict() for each in self.estimators]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes in what ``state_dict`` gave; rank zero's is broadcast. Collective: every rank."""
        self._load(state)
        self._synchronise()

    def _load(self, state: dict[str, Any]) -> None:
        if len(state["estimators"]) != len(self.estimators):
            told = f"{len(state['estimators'])} estimator(s) of CLUB, this run {len(self.estimators)}"
            raise ClubError(f"the checkpoint has {told}; set `symmetric` as it was")
        for estimator, each in zip(self.estimators, state["estimators"], strict=True):
            estimator.load_state_dict(each)
        self.step = state["step"]

    def _synchronise(self) -> None:
        """Every rank takes rank zero's state. Collective: every rank."""
        if self.rung.group is not None:
            buffer = io.BytesIO()
            torch.save(self.state_dict(), buffer)
            sent = io.BytesIO(broadcast_object(buffer.getvalue(), self.rung.group))
            self._load(torch.load(sent, map_location="cpu", weights_only=True))
        self._synchronised = True

    def check(self) -> None:
        """Raises ``ClubError`` on every rank if q differs between ranks; says what ails q. Collective: every rank."""
        sums = torch.stack([each.checksum() for each in self.estimators])
        least, greatest = extremes(sums, self.rung.group)
        if not torch.equal(least, greatest):
            told = "every rank must call CLUBLoss in every step, and nothing else may change q"
            raise ClubError(f"the estimator of CLUB differs between ranks after step {self.step}; {told}")
        for message in self.diagnose():
            self._say_once(message, message.partition(":")[0])

    def diagnose(self) -> list[str]:
        """What is wrong with q, or with the features as q sees them, in the last step; a line each. Local."""
        found = []
        for estimator, nll in zip(self.estimators, self._nll, strict=False):
            if float(nll) < estimator.floor + AT_FLOOR * estimator.y_dim:
                told = "the features have collapsed to a constant, or are a copy of the others"
                found.append(f"NLL at its floor: {float(nll):.4g} of at least {estimator.floor:.4g}; {told}")
        if self._values and float(self.value) < STALE * min(self.dims):
            told = "the estimator is stale: raise inner_steps or lr, or lower update_every or the encoders' lr"
            found.append(f"value strongly negative: {float(self.value):.4g} nats; {told}")
        return found

    def _say_once(self, message: str, about: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self.rung.say(message)


def _moments(pairs: Sequence[Pairs], reduce_sum: ReduceSum | None) -> list[Moments]:
    """The means of each direction. Collective where ``reduce_sum`` is."""
    return [moments_gaussian([each], reduce_sum) for each in pairs]


def _total(part: Tensor, reduce_sum: ReduceSum | None) -> Tensor:
    """The sum over ranks, detached. Collective where ``reduce_sum`` is."""
    return part.detach() if reduce_sum is None else reduce_sum(part)


def _pooled(x: Tensor) -> Tensor:
    """(n, ..., d) -> (n, d), the mean."""
    return x if x.dim() == 2 else x.flatten(1, -2).mean(1)
