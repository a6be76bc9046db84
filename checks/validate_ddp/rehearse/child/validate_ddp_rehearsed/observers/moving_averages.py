"""Moving averages of tensors, as of a model's weights: whether one in low precision moves at all, and which ranks move
one that is sharded over them.

``mul_``, ``add_`` and ``lerp_`` are called by everything, so the first look is at the dtype, and nothing is looked at
while an optimizer steps.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Handed, Kwargs, Original, around, guarded, patch
from .averages_of_shards import OfShards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.nn import Module

    from ..session import Session

    Tensors = Sequence[Tensor]
    Measuring = tuple[str, Tensors, Tensors, Tensors, float | None, float]
    """What ``measure`` is called with."""
    Of = Callable[[Handed, Args, Args, Kwargs], None]
    """What looks at a sharded average, what is new, and further arguments."""
    Before = Callable[[Tensors, Args, Args, Kwargs], Measuring | None]
    """What decides that, of averages, what is new, and further arguments."""

_LARGEST_WEIGHT = 0.1
"""Of what is new: the decay is at least 0.9."""
_UPDATES, _TENSORS, _ELEMENTS, _LOOKS = 4, 8, 4096, 4000
"""What is measured: of each line so many tensors, of each so many updates and elements; of a run so many calls."""
_NEAR = 0.5
"""A sum of ``decay * average`` and something else is an average only if that is about ``(1 - decay) * average``."""


def install(session: Session) -> None:
    """Local. Events ``average`` and ``averaged_shards``."""
    torch = session.torch
    observer = _Averages(session)
    tensor, shards = torch.Tensor, observer.shards
    patch(tensor, "lerp_", observer.single(observer.interpolating, shards.interpolating))
    patch(tensor, "add_", observer.single(observer.adding, shards.adding, alone=False))
    patch(tensor, "mul_", observer.single(observer.scaling, shards.scaling))
    patch(torch, "_foreach_lerp_", observer.several(observer.interpolating, shards.interpolating))
    patch(torch, "_foreach_add_", observer.several(observer.adding, shards.adding))
    patch(torch, "_foreach_mul_", observer.several(observer.scaling, shards.scaling))
    module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name
    module.register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: observer.stepping(1))
    module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: observer.stepping(-1))
    swa = sys.modules.get("torch.optim.swa_utils")
    if swa is not None:
        around(
            swa.AveragedModel, "update_parameters", session.fault, observer.updating, observer.updated, observer.updated
        )


class _Averages:
    """The updates of moving averages in this process. off: above 0 while nothing is looked at. tired: whether it has
    looked at plain tensors as often as it may."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.torch = session.torch
        self.low = (self.torch.bfloat16, self.torch.float16)
        self.shards = OfShards(session)
        self.off = 0
        self.tired = False
        self.looks = 0
        self.counts: dict[tuple[protocol.Site, int], int] = {}
        """By line and address of the tensor: its updates so far."""
        self.tensors: dict[protocol.Site, int] = {}
        """By line: how many tensors are measured there."""
        self.full: set[protocol.Site] = set()
        """Lines at which an average is in full precision."""
        self.scaled: tuple[int, float, list[Tensor]] | None = None
        """Of the tensor that was multiplied last: its address, by how much, and elements from before."""

    def stepping(self, change: int) -> None:
        self.off += change

    def single(self, before: Before, of_shards: Of, alone: bool = True) -> Callable[[Original], Original]:
        """Stubs of a method of a tensor. before: gives what has to be measured afterwards, or None. of_shards: looks at
        a sharded one instead. alone: whether it says something without ``mul_`` before it."""

        def make(original: Original) -> Original:
            def changed(*args: Handed, **kwargs: object) -> object:
                if not self.off and hasattr(args[0], "_local_tensor"):
                    guarded(self.session.fault, "averages", of_shards, args[0], args[1:2], args[2:], kwargs)
                    return original(*args, **kwargs)
                if self.off or self.tired or not (alone or self.scaled) or not args[0].is_floating_point():
                    return original(*args, **kwargs)
                token = guarded(self.session.fault, "averages", before, args[:1], args[1:2], args[2:], kwargs)
                result = original(*args, **kwargs)
                if token is not None:
                    guarded(self.session.fault, "averages", self.measure, *token)
                return result

            return changed

        return make

    def several(self, before: Before, of_shards: Of) -> Callable[[Original], Original]:
        """Stubs of a function of lists of tensors."""

        def make(original: Original) -> Original:
            def changed(*args: Handed, **kwargs: object) -> object:
                if self.off or len(args) < 2 or not isinstance(args[0], (list, tuple)) or not args[0]:
                    return original(*args, **kwargs)
                averages, new = args[0][:_TENSORS], args[1]
                new = new[:_TENSORS] if isinstance(new, (list, tuple)) else [new] * len(averages)
                if hasattr(averages[0], "_local_tensor"):
                    guarded(self.session.fault, "averages", of_shards, averages[0], new[:1], args[2:], kwargs)
                    return original(*args, **kwargs)
                if self.tired:
                    return original(*args, **kwargs)
                token = guarded(self.session.fault, "averages", before, averages, new, args[2:], kwargs)
                result = original(*args, **kwargs)
                if token is not None:
                    guarded(self.session.fault, "averages", self.measure, *token)
                return result

            return changed

        return make

    def interpolating(self, averages: Tensors, new: Tensors, rest: Args, kwargs: Kwargs) -> Measuring | None:
        """Before ``average.lerp_(new, weight)``."""
        weight = rest[0] if rest else kwargs.get("weight")
        new = new or (kwargs.get("end"),)
        if not isinstance(weight, float) or not 0 < weight <= _LARGEST_WEIGHT or not self.fit(averages, new):
            return None
        return "lerp_", averages, self.before(averages), self.targets(averages, new), 1 - weight, 0.0

    def scaling(self, averages: Tensors, factors: Args, rest: Args, kwargs: Kwargs) -> None:
        """Before ``average.mul_(decay)``, which says nothing without what is added next."""
        factor = factors[0] if factors else kwargs.get("other")
        self.scaled = None
        if isinstance(factor, float) and 1 - _LARGEST_WEIGHT <= factor < 1 and self.wanted(averages[0]):
            self.scaled = averages[0].data_ptr(), factor, self.before(averages)

    def adding(self, averages: Tensors, new: Tensors, rest: Args, kwargs: Kwargs) -> Measuring | None:
        """Before ``average.add_(new, alpha=1 - decay)`` or ``average.add_((1 - decay) * new)``."""
        held, self.scaled = self.scaled, None
        new = new or (kwargs.get("other"),)
        if held is None or held[0] != averages[0].data_ptr():
            return None
        weight, alpha = 1 - held[1], kwargs.get("alpha", rest[0] if rest else 1)
        whole = isinstance(alpha, float) and abs(alpha - weight) < 1e-3 * weight
        if not (whole or alpha == 1) or not self.fit(averages, new, told=whole):
            return None
        targets = self.targets(averages, new, 1 if whole else 1 / weight)
        if not whole and not all(_near(*pair) for pair in zip(held[2], targets, strict=True)):
            return None  # momentum, decay of weights
        # What was multiplied by hand is rounded: only what clearly differs from the average should have moved it.
        return "add_", averages, held[2], targets, held[1], 0.0 if whole else 2.0**-6

    def updating(self, args: Args, kwargs: Kwargs) -> Measuring | None:
        """Before ``AveragedModel.update_parameters(model)``."""
        held = args[0]
        model: Module = args[1] if len(args) > 1 else kwargs.get("model")
        first = not bool(held.n_averaged)
        self.stepping(1)
        for each in held.module.parameters():
            self.shards.updated(each)
        pairs = [
            (one.detach(), two.detach())
            for one, two in zip(held.module.parameters(), model.parameters(), strict=False)
            if one.is_floating_point()
        ][:_TENSORS]
        averages, new = [one for one, _ in pairs], [two for _, two in pairs]
        if first or not pairs or not self.fit(averages, new):
            return None
        decay = _decay(held.multi_avg_fn) or _decay(held.avg_fn)
        return "update_parameters", averages, self.before(averages), self.targets(averages, new), decay, 0.0

    def updated(self, measuring: Measuring | None, result: object) -> None:
        self.stepping(-1)
        if measuring is not None and not isinstance(result, BaseException):
            self.measure(*measuring)

    def wanted(self, average: Tensor) -> bool:
        """Whether to look at it: not too often, and not at what autograd follows."""
        self.looks += 1
        if self.looks > _LOOKS:
            self.tired = True
            return False
        return self.plain(average)

    def plain(self, tensor: Tensor) -> bool:
        """Whether it is an ordinary tensor: one that is sharded would call collectives when it is read."""
        torch = self.torch
        ordinary = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
        return ordinary and not tensor.is_meta and not (tensor.requires_grad and torch.is_grad_enabled())

    def fit(self, averages: Tensors, new: Tensors, told: bool = True) -> bool:
        """Whether averages are in low precision, and what they are averages of fits them. told: says of those in full
        precision, once a line, that they are."""
        if not self.wanted(averages[0]) or len(new) != len(averages):
            return False
        for one, two in zip(averages, new, strict=True):
            if not self.plain(one) or not self.plain(two) or two.shape != one.shape or not two.is_floating_point():
                return False
        low = [each.dtype in self.low for each in averages]
        if told and not any(low) and len(self.full) < _TENSORS:
            site = self.session.here()
            if site not in self.full:
                self.full.add(site)
                self.session.emit(protocol.Average(dtype=str(averages[0].dtype)[6:], site=site))
        return all(low)

    def before(self, averages: Tensors) -> list[Tensor]:
        """Copies of some elements of each, the same ones every time; none in full precision."""
        return [self.some(each).clone() for each in averages if each.dtype in self.low]

    def some(self, tensor: Tensor) -> Tensor:
        flat = tensor.detach().reshape(-1)
        return flat[:: max(1, flat.numel() // _ELEMENTS)]

    def targets(self, averages: Tensors, new: Tensors, factor: float = 1) -> list[Tensor]:
        """The same elements of what they are averages of, in their precision."""
        somes = [self.some(each) if factor == 1 else self.some(each).float() * factor for each in new]
        return [some.to(average.dtype) for average, some in zip(averages, somes, strict=True)]

    def measure(
        self,
        function: str,
        averages: Tensors,
        olds: Tensors,
        targets: Tensors,
        decay: float | None,
        clearly: float,
    ) -> None:
        """Counts the elements that should have moved, and those of them that did not.

        clearly: how far from the average an element must be, as a share of it.
        """
        site = self.session.here()
        for average, old, target in zip(averages, olds, targets, strict=True):
            key = (site, average.data_ptr())
            if key not in self.counts and self.tensors.get(site, 0) < _TENSORS:
                self.tensors[site] = self.tensors.get(site, 0) + 1
                self.counts[key] = 0
            count = self.counts.get(key, _UPDATES) + 1
            if count > _UPDATES:
                continue
            self.counts[key] = count
            should = (target != old) if not clearly else (target - old).abs() > clearly * old.abs()
            still = should & (self.some(average) == old)
            told = protocol.Average(
                function=function, dtype=str(average.dtype)[6:], decay=decay, count=count,
                should=int(should.sum()), still=int(still.sum()), site=site,
            )  # fmt: skip
            self.session.emit(told)


def _near(old: Tensor, target: Tensor) -> bool:
    one, two = old.float(), target.float()
    return bool((one - two).norm() <= _NEAR * one.norm())


def _decay(function: object) -> float | None:
    """The decay that a function of ``torch.optim.swa_utils`` was made with."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    function = getattr(function, "__wrapped__", None)
    if function is not None:
        return _decay(function)
    for name, cell in zip(getattr(code, "co_freevars", ()), cells or (), strict=False):
        if name == "decay" and isinstance(cell.cell_contents, float):
            return float(cell.cell_contents)
    return None
