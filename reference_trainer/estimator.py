"""CLUBLoss: CLUB between two sets of learned features, with the estimator q that it needs. For our loop and any other.

    club = CLUBLoss(x_dim, y_dim)                  # before training: q belongs to the checkpoint
    result = club(x, y)                            # fits q, then takes the loss; every rank, every step
    (task_loss + result.loss).backward()           # the weight is in it; log result.value, which is from before the fit

With accumulation, exactly: ``begin_step``, ``begin`` with all micro-batches' features, ``weighted_part`` times W / N.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from .config import ClubConfig
from .core.club import ClubError, ClubResult, Moments, ReduceSum, covariance_sum_gaussian, moments_gaussian
from .core.collectives import WORLD, Group, all_gather_with_grad, broadcast_object, process_group, sum_reducer
from .core.launch import World


class CLUBLoss:
    """CLUB(x; y) with its estimator. Not a module: neither DDP nor the main optimizer may get q.

    group: the ranks over which DDP averages; WORLD looks for them at the first use, None is this process alone.
    Features are (n_r, ..., d), averaged over the dimensions between; n_r may differ between ranks and be 0.
    """

    def __init__(self, x_dim: int, y_dim: int, config: ClubConfig | None = None, *, group: Group = WORLD) -> None:
        self.config, self.dims, self.group = config or ClubConfig(), (x_dim, y_dim), group
        self.estimator = Estimator(x_dim, y_dim, self.config)
        self.step = 0
        self.accelerator: Any = None
        self._world: World | None = None
        self._placed = False
        self._said: set[str] = set()
        # Of the step that has begun, and of the last fit.
        self._total: float | Tensor | None = None
        self._union: Moments | None = None
        self._values: list[Tensor] = []
        self._before_fit: Tensor | None = None

    def set_accelerator(self, accelerator: Any) -> None:
        """For somebody else's Accelerate loop, before training. Local; every rank.

        Its backward divides the loss by its gradient_accumulation_steps: with several, CLUB of the union is refused.
        """
        steps = accelerator.gradient_accumulation_steps
        if steps > 1 and self.config.accumulation != "micro":
            told = 'CLUB of their union is out of reach; use ClubConfig(accumulation="micro"), the mean of their CLUBs'
            many = f"{steps} micro-batches and divides each loss by {steps}"
            raise ClubError(f"the Accelerator accumulates {many}: {told}")
        if self._world is not None and self._world.launcher != "accelerator":
            raise ClubError(
                f"set_accelerator came too late: CLUB runs on {_words(self._world)}; call it before the first use"
            )
        kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
        if kind != "NO" and not kind.startswith("MULTI_"):
            told = "CLUB knows only how DDP averages gradients (MULTI_GPU, MULTI_CPU)"
            raise ClubError(f"the Accelerator runs {kind}; {told}")
        self.accelerator = accelerator

    @property
    def world(self) -> World:
        """The ranks over which DDP averages, found at the first use; `launcher` is who says so. Local.

        ``ClubError`` where that no longer holds.
        """
        if self._world is None:
            group = process_group(self.group)
            rank, size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
            if self.accelerator is not None and self.accelerator.num_processes != size:
                told = f"{self.accelerator.num_processes} processes and torch.distributed {size}"
                raise ClubError(f"the Accelerator has {told}; CLUB needs the group over which DDP averages")
            found = "local" if group is None else "torch.distributed"
            found = found if self.accelerator is None else "accelerator"
            self._world = World(rank, size=size, launcher=found, group=group)
            searched = found == "local" and self.group == WORLD
            why = " (no Accelerator given, torch.distributed not initialised)" if searched else ""
            self._say_once(f"runs on {_words(self._world)}{why}", "world")
        elif self._world.group is None and self.group == WORLD and process_group(WORLD) is not None:
            told = "make the process group (or the Accelerator) before the first use of CLUBLoss"
            raise ClubError(f"torch.distributed was initialised after CLUB had begun in this process alone; {told}")
        return self._world

    @property
    def reduce_sum(self) -> ReduceSum | None:
        """The sum over the ranks; None alone. Local, and what it returns is collective."""
        return sum_reducer(self.world.group)

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
        pairs = (*self.estimator.fit(x, y, self.reduce_sum), y)
        moments = moments_gaussian([pairs], self.reduce_sum)
        self._before_fit = self._mean(covariance_sum_gaussian(*pairs, moments), moments)

    def loss(self, x: Tensor, y: Tensor) -> ClubResult:
        """Weight times CLUB, to be averaged by DDP; its ``value`` has no weight. Collective: every rank."""
        part, count = self._part(x, y)
        return ClubResult(self.weight * part * (self.world.size / count), self.value)

    # Several micro-batches a step: sums, which the caller multiplies by W / N.

    def begin_step(self, total: float | Tensor | None = None) -> None:
        """Counts an optimizer step. total: what sums will be divided by, if not the samples of the step. Local."""
        self.step += 1
        self._total, self._union, self._values, self._before_fit = total, None, [], None

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
            pairs = (*self.estimator.frozen(x), y)
            self._union = moments_gaussian([pairs], self.reduce_sum)
            self._record(covariance_sum_gaussian(*pairs, self._union), self._union)

    def weighted_part(self, x: Tensor, y: Tensor) -> Tensor:
        """This rank's sum over a micro-batch times the weight, with graph, for a caller that divides by ``total``.

        Without ``begin`` it stands for itself, and q is fitted to it where that is due. Collective: every rank.
        """
        if self._union is None and self.due:
            self.fit(x, y)
        part, count = self._part(x, y)
        if self._total is not None and self.config.accumulation == "union":
            part = part * (self._total / count).to(part.dtype)
        return self.weight * part

    def _part(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The sum with graph, and N."""
        if self.step == 0:
            raise ClubError("no step has begun; call begin_step once per optimizer step, or call CLUBLoss itself")
        x, y = self._features(x, y)
        if self.config.path == "gather":
            # Every rank has the whole sum, and the gather's backward pass adds up what all ask: a W-th each.
            group, size = self.world.group, self.world.size
            pairs = (*self.estimator.frozen(all_gather_with_grad(x, group)), all_gather_with_grad(y, group))
            moments = moments_gaussian([pairs])
            part = covariance_sum_gaussian(*pairs, moments) / size
        else:
            pairs = (*self.estimator.frozen(x), y)
            moments = self._union or moments_gaussian([pairs], self.reduce_sum)
            part = covariance_sum_gaussian(*pairs, moments)
        if self._union is None:
            self._record(part, moments)
        return part, moments.count

    def _mean(self, part: Tensor, moments: Moments) -> Tensor:
        """Of all ranks' samples, detached. Collective."""
        return (self.reduce_sum or Tensor.detach)(part) / moments.count

    def _record(self, part: Tensor, moments: Moments) -> None:
        """Keeps the value: from before the fit, if there was one. Collective where there was none."""
        value, self._before_fit = self._before_fit, None
        self._values.append(self._mean(part, moments) if value is None else value)

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
            self.estimator.place(x.device, torch.promote_types(x.dtype, y.dtype))
            self._synchronise()
        kind = self.estimator.parameters[0].dtype
        x, y = (each if each.dim() == 2 else each.flatten(1, -2).mean(1) for each in (x.to(kind), y.to(kind)))
        return x, y

    # State, and its equality on all ranks.

    def state_dict(self) -> dict[str, Any]:
        """q, its optimizer and the step. Local: equal on all ranks, so rank zero's is enough for a checkpoint."""
        return {"step": self.step, "estimator": self.estimator.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes in what ``state_dict`` gave; rank zero's is broadcast. Collective: every rank."""
        self._load(state)
        self._synchronise()
        self._placed = False

    def _load(self, state: dict[str, Any]) -> None:
        if "estimator" not in state:
            told = "another version saved it; begin with its weights alone (checkpoint.init_from), in another run_dir"
            raise ClubError(f"the checkpoint has no estimator of CLUB: {told}")
        self.estimator.load_state_dict(state["estimator"])
        self.step = state["step"]

    def _synchronise(self) -> None:
        """Every rank takes rank zero's state. Collective: every rank."""
        if self.world.group is not None:
            mine = tree_map_only(Tensor, Tensor.cpu, self.state_dict())
            self._load(broadcast_object(mine, self.world.group))
        self._placed = True

    def _say_once(self, message: str, about: str) -> None:
        """On rank zero."""
        if about not in self._said and (self._world is None or self._world.rank == 0):
            print(f"CLUB: {message}", file=sys.stderr, flush=True)
        self._said.add(about)


def _words(world: World) -> str:
    """The ranks that CLUB runs on, and who says so."""
    ranks = f"{world.size} rank{'s' * (world.size > 1)}, as {world.launcher} has it"
    return "this process alone" if world.launcher == "local" else ranks


# The estimator: q(y|x), a Gaussian, its fit on local shards, its frozen use.


class GaussianQ(nn.Module):
    """Mean and log-variance of y given x, by one MLP each. No BatchNorm: it would mix the samples of a rank."""

    def __init__(self, x_dim: int, y_dim: int, hidden: Sequence[int], variance: str) -> None:
        super().__init__()
        self.mu = mlp([x_dim, *hidden, y_dim])
        self.logvar = nn.Sequential(mlp([x_dim, *hidden, y_dim]), nn.Tanh()) if variance == "bounded" else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x (n, x_dim) -> mu and logvar, (n, y_dim) each; logvar is None for unit variance."""
        return self.mu(x), None if self.logvar is None else self.logvar(x)


class Estimator:
    """q and its optimizer: replicas on all ranks that stay equal because they are given equal gradients."""

    def __init__(self, x_dim: int, y_dim: int, config: ClubConfig) -> None:
        self.config = config
        self.q = GaussianQ(x_dim, y_dim, config.hidden, config.variance)
        self.parameters = list(self.q.parameters())
        # Fused: it can leave a step out without being waited for, see `fit`.
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.lr, fused=True)

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Moves q and its optimizer to the device, and to the wider of its own type and this one. Local."""
        self.q.to(device, torch.promote_types(self.parameters[0].dtype, dtype))
        # Loading is what moves an optimizer's state to its parameters' device and type.
        self.optimizer.load_state_dict(self.optimizer.state_dict())

    def fit(self, x: Tensor, y: Tensor, reduce_sum: ReduceSum | None) -> tuple[Tensor, Tensor | None]:
        """``inner_steps`` steps towards the maximum likelihood of x (n_r, dx), y (n_r, dy); returns mu and logvar of
        before. Collective: every rank."""
        count = y.new_full((1,), len(y))
        count = count if reduce_sum is None else reduce_sum(count)
        before = self.frozen(x)
        with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
            for _ in range(self.config.inner_steps):
                mu, logvar = self.q(x)
                gradients = torch.autograd.grad((nll_sum(mu, logvar, y) / count).sum(), self.parameters)
                packed = torch.cat([each.flatten() for each in gradients])
                packed = packed if reduce_sum is None else reduce_sum(packed)
                sizes = [each.numel() for each in self.parameters]
                for parameter, part in zip(self.parameters, packed.split(sizes), strict=True):
                    parameter.grad = part.view_as(parameter)
                # One sample that is not finite would end q for good, on all ranks. As a GradScaler tells an optimizer.
                self.optimizer.grad_scale = None
                self.optimizer.found_inf = (~torch.isfinite(packed.sum())).float()
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        return before

    def frozen(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """mu and logvar with a gradient to x and none to q: the main loss must not train q to fail. Local."""
        detached = {name: each.detach() for name, each in self.q.named_parameters()}
        with torch.autocast(x.device.type, enabled=False):
            found: tuple[Tensor, Tensor | None] = functional_call(self.q, detached, (x,))
        return found

    def state_dict(self) -> dict[str, Any]:
        """q and its optimizer. Local."""
        return {"q": self.q.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes q's type from the state, so that nothing is rounded. Local."""
        self.q.to(dtype=next(iter(state["q"].values())).dtype)
        self.q.load_state_dict(state["q"])
        # A copy: what is loaded as it is stays shared with the giver, and Adam writes into it.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


def nll_sum(mu: Tensor, logvar: Tensor | None, y: Tensor) -> Tensor:
    """Negative log-likelihood in nats, summed over samples and dimensions, without the constant. Local."""
    squared = (y - mu).square()
    return 0.5 * (squared if logvar is None else squared * torch.exp(-logvar) + logvar).sum()


def mlp(widths: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of these widths with activations between them."""
    layers = [each for inputs, outputs in pairwise(widths) for each in (nn.Linear(inputs, outputs), activation())]
    return nn.Sequential(*layers[:-1])
