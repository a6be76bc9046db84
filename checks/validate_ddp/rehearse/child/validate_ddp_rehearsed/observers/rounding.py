"""Weights in low precision: how many of them an optimizer's step leaves as they were, though they have a gradient.

Only of torch's own optimizers: none of them keeps a copy in full precision, in which small updates would add up.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from .. import protocol
from ..patching import guarded

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from ..session import Session

_STEPS = frozenset({1, 2, 3, 4, 8, 16, 32})
"""Steps of each optimizer that are looked at: some are behind a short warm-up."""
_TENSORS, _ELEMENTS = 64, 1024
"""In each so many tensors, and of each tensor so many elements."""
_ENOUGH = 8
"""Elements that should have moved; of fewer it says nothing that all stand still."""


class _Part(NamedTuple):
    """Elements of a weight: what they are a part of, what they were before the step, and which have a gradient."""

    weight: Tensor
    before: Tensor
    driven: Tensor


def install(session: Session) -> None:
    """Local. Event ``rounded``."""
    module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name
    observer = _Rounding(session)
    module.register_optimizer_step_pre_hook(
        lambda optimizer, args, kwargs: guarded(session.fault, "rounding", observer.before, optimizer)
    )
    module.register_optimizer_step_post_hook(
        lambda optimizer, args, kwargs: guarded(session.fault, "rounding", observer.after, optimizer)
    )


class _Rounding:
    """The optimizers of this process."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.low = (session.torch.bfloat16, session.torch.float16)
        self.counts: dict[int, int] = {}
        self.parts: dict[int, list[_Part]] = {}

    def before(self, optimizer: Optimizer) -> None:
        number = self.session.optimizers.of(optimizer)
        self.counts[number] = self.counts.get(number, 0) + 1
        if self.counts[number] not in _STEPS or not type(optimizer).__module__.startswith("torch.optim."):
            return
        held = [each for group in optimizer.param_groups for each in group["params"] if each.dtype in self.low]
        parts = [part for each in held[:_TENSORS] if (part := _part(each)) is not None]
        if parts:
            self.parts[number] = parts

    def after(self, optimizer: Optimizer) -> None:
        number = self.session.optimizers.of(optimizer)
        parts = self.parts.pop(number, None)
        if parts is None:
            return
        should = [int(each.driven.sum()) for each in parts]
        still = [int((each.driven & (_first(each.weight) == each.before)).sum()) for each in parts]
        stuck = sum(left == moved >= _ENOUGH for left, moved in zip(still, should, strict=True))
        groups = optimizer.param_groups
        rates = [float(group["lr"]) for group in groups if "lr" in group]
        told = protocol.Rounded(
            optimizer=number, count=self.counts[number], dtype=str(parts[0].weight.dtype).removeprefix("torch."),
            should=sum(should), still=sum(still), tensors=len(parts), stuck=stuck, rate=max(rates, default=0.0),
            rising=any(map(_rises, groups)), site=self.session.here(),
        )  # fmt: skip
        self.session.emit(told)


def _part(weight: Tensor) -> _Part | None:
    """The first elements of a weight that holds numbers and has a gradient."""
    gradient = weight.grad
    if gradient is None or gradient.is_sparse or not _own(weight).untyped_storage().nbytes():
        return None
    return _Part(weight, _first(weight).clone(), _first(gradient) != 0)


def _first(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, the first elements of it."""
    return _own(tensor).detach().reshape(-1)[:_ELEMENTS]


def _own(tensor: Tensor) -> Tensor:
    own: Tensor = getattr(tensor, "_local_tensor", tensor)
    return own


def _rises(group: dict[str, object]) -> bool:
    """Whether a schedule has yet to come to the learning rate that it was made for."""
    rate = group.get("lr")
    aims = (group.get("initial_lr"), group.get("max_lr"))
    return isinstance(rate, float) and any(isinstance(aim, float) and rate < aim * 0.999 for aim in aims)
