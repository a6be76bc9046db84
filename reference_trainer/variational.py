"""q(y|x), the Gaussian that CLUB reads information with: the network, its fit on local shards, its frozen use."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .config import ClubConfig
from .core.club import ReduceSum


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

    @property
    def dtype(self) -> torch.dtype:
        kind: torch.dtype = self.parameters[0].dtype
        return kind

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Moves q and its optimizer to the device, and to the wider of its own type and this one. Local."""
        self.q.to(device, torch.promote_types(self.dtype, dtype))
        # Loading is what moves an optimizer's state to its parameters' device and type.
        self.optimizer.load_state_dict(self.optimizer.state_dict())

    def checksum(self) -> Tensor:
        """An int64 scalar of all bits of q, in order. Local."""
        flat = torch.cat([each.detach().flatten() for each in self.parameters])
        bits = flat.view(torch.int64 if flat.element_size() == 8 else torch.int32).to(torch.int64)
        order = torch.arange(len(bits), device=bits.device) * 2 + 1
        return (bits * order).sum() & (2**62 - 1)  # overflow wraps; what is left has a negative

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


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers = [each for inputs, outputs in pairwise(widths) for each in (nn.Linear(inputs, outputs), nn.ReLU())]
    return nn.Sequential(*layers[:-1])
