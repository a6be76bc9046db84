"""Mean losses: of how many targets each is the mean. DDP weighs the ranks alike, however many they have."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Kwargs, around

if TYPE_CHECKING:
    from torch import Tensor

    from ..session import Session

_FUNCTIONS = (
    "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss",
)  # fmt: skip
_TOLD = 200
"""Calls of each place that are told."""


def install(session: Session) -> None:
    """Local. Event ``mean_loss``."""
    functional = session.torch.nn.functional
    observer = _Losses(session)
    for name in _FUNCTIONS:
        parameters = list(inspect.signature(getattr(functional, name)).parameters)
        around(functional, name, session.fault, functools.partial(observer.called, name, parameters))


class _Losses:
    """The losses that this process takes while it trains."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.counts: dict[protocol.Site, int] = {}

    def called(self, name: str, parameters: list[str], args: Args, kwargs: Kwargs) -> None:
        values = {**dict(zip(parameters, args, strict=False)), **kwargs}
        torch, given, target = self.session.torch, values.get("input"), values.get("target")
        if not torch.is_grad_enabled() or values.get("reduction", "mean") != "mean" or values.get("weight") is not None:
            return
        if not isinstance(given, torch.Tensor) or not isinstance(target, torch.Tensor) or not given.requires_grad:
            return
        site = self.session.here()
        self.counts[site] = self.counts.get(site, 0) + 1
        if self.counts[site] <= _TOLD and target.device.type == "cpu":
            self.session.emit(protocol.MeanLoss(function=name, count=_targets(target, values), site=site))


def _targets(target: Tensor, values: Kwargs) -> int:
    """Targets that count: those of an ignored class do not, and probabilities of classes are one a row."""
    if target.is_floating_point():
        given = values["input"]
        rows = target.shape[0] if target.dim() and "label_smoothing" in values else given.numel()
        return int(rows)
    return int((target != values.get("ignore_index", -100)).sum())
