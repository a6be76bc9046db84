"""Norms that the script takes by hand: squares of gradients that it adds up over ranks, and shards that it scales."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Kwargs, around, guarded

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from ..session import Session

_ROUNDS, _SHARDS = 4, 16
"""Sums for an optimizer, and shards of a line, that are looked at."""
_ELEMENTS = 1 << 22
"""Of a shard that is looked at."""
_SUM_OF_SQUARES, _COLINEAR = 1e-4, 1e-5
"""Relative differences, in float32, of what is one."""
_ROUNDED, _SOUGHT = 1e-2, 8
"""Relative difference of a gradient and its copy in a bucket, be it of a narrower type; parameters that are sought."""


def install(session: Session) -> None:
    """Local. Events ``squares`` and ``rescaled``."""
    dist = session.torch.distributed
    if not dist.is_available():
        return
    observer = _Norms(session)
    session.calls.listeners.append(lambda op, values: guarded(session.fault, "norms", observer.called, op, values))
    session.leaving.append(observer.leaving)
    sys.modules["torch.nn.modules.module"].register_module_parameter_registration_hook(observer.registered)
    module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name
    around(
        module.Optimizer, "__init__", session.fault, lambda args, kwargs: args[0],
        lambda optimizer, result: observer.made(optimizer),
    )  # fmt: skip
    module.register_optimizer_step_pre_hook(
        lambda optimizer, args, kwargs: guarded(session.fault, "norms", observer.look)
    )


class _Shard:
    """What a reduction has left to this rank. before: as it was then. times: how many times that it is now; 0 where it
    is no multiple. count: of those at its line, from 0."""

    def __init__(self, tensor: Tensor, ranks: list[int], site: protocol.Site, count: int) -> None:
        self.tensor, self.before = tensor, tensor.detach().clone()
        self.ranks, self.site, self.count = ranks, site, count
        self.times = 1.0


class _Norms:
    """Of this process."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.optimizers: list[weakref.ref[Optimizer]] = []
        self.shards: dict[int, _Shard] = {}
        """By address."""
        self.scattered: dict[tuple[str, int], int] = {}
        """Shards that were looked at, by line."""
        self.sums: dict[int, int] = {}
        """By optimizer."""
        self.trained: list[weakref.ref[Tensor]] = []
        """Parameters of all modules."""

    def made(self, optimizer: Optimizer) -> None:
        self.optimizers.append(weakref.ref(optimizer))

    def registered(self, module: object, name: str, parameter: Tensor | None) -> None:
        if parameter is not None:
            self.trained.append(weakref.ref(parameter))

    def called(self, op: str, values: Kwargs) -> None:
        """After a collective."""
        if values.get("async_op") or self.session.sites.within("distributed/fsdp"):
            return
        if op.startswith("reduce_scatter"):
            self.shard(values.get("output"), values)
        elif op.startswith("all_gather") or op == "broadcast":
            self.look()
        elif op == "all_reduce" and self.session.calls.given is not None and len(self.session.calls.given) == 1:
            self.summed(self.session.calls.given[0], values)

    def shard(self, tensor: Tensor | None, values: Kwargs) -> None:
        kinds = (self.session.torch.Tensor, self.session.torch.nn.Parameter)
        if type(tensor) not in kinds or tensor is None or not tensor.is_floating_point():
            return
        self._tell(self.shards.pop(tensor.data_ptr(), None))
        named = self.session.calls.group_name(values.get("group"))
        site = self.session.here()
        count = self.scattered.get(site.place, 0)
        flat = tensor.dim() == 1 and 1 < tensor.numel() <= _ELEMENTS  # what has a shape may be a whole layer
        if named is not None and flat and count < _SHARDS and self._is_gradient(values, tensor.numel(), len(named[1])):
            self.scattered[site.place] = count + 1
            self.shards[tensor.data_ptr()] = _Shard(tensor, named[1], site, count)

    def _is_gradient(self, values: Kwargs, size: int, ranks: int) -> bool:
        """Whether what is dealt out holds a gradient that goes to several ranks, as it is or divided by their number: a
        rank that is given whole layers may scale each by a norm of its own, and other numbers as it likes."""
        given = values.get("input", values.get("input_list"))
        whole = given if isinstance(given, self.session.torch.Tensor) else self.session.torch.cat(list(given or ()))
        whole = whole.detach().reshape(-1).double()
        held = {id(each): each.grad for ref in self.trained if (each := ref()) is not None}
        grads = [each for each in held.values() if each is not None and _is_dense(each)]
        for grad in sorted(grads, key=lambda each: -each.numel())[:_SOUGHT]:
            flat = grad.detach().reshape(-1).double()
            for part in (flat, flat / ranks) if bool(flat.any()) else ():
                at = int((whole - part[part.abs().argmax()]).abs().argmin()) - int(part.abs().argmax())
                found = whole[at : at + part.numel()] if at >= 0 else whole[:0]
                if found.shape == part.shape and float((found - part).norm()) <= _ROUNDED * float(part.norm()):
                    if at // size != (at + part.numel() - 1) // size:
                        return True
        return False

    def look(self) -> None:
        """What has become of the shards."""
        for shard in self.shards.values():
            now, before = shard.tensor.detach(), shard.before
            size = float(before.double().square().sum())
            if now.shape != before.shape or not size:
                shard.times = 0.0
                continue
            times = float((now.double() * before.double()).sum()) / size
            off = float((now.double() - times * before.double()).norm())
            shard.times = times if off <= _COLINEAR * float(now.double().norm()) else 0.0

    def _tell(self, shard: _Shard | None) -> None:
        if shard is not None:
            told = protocol.Rescaled(count=shard.count, times=shard.times, ranks=shard.ranks, site=shard.site)
            self.session.emit(told)

    def leaving(self) -> None:
        for shard in self.shards.values():
            self._tell(shard)

    def summed(self, given: float, values: Kwargs) -> None:
        """A number that ranks add up: whether it is the sum of the squares of all of this rank's gradients."""
        named = self.session.calls.group_name(values.get("group"))
        if named is None or given <= 0 or "SUM" not in str(values.get("op", "SUM")).upper():
            return
        for number, optimizer in enumerate(each() for each in self.optimizers):
            if optimizer is None:
                continue
            norms = _norms(optimizer)
            total = sum(each**2 for each in norms if each is not None)
            told, more = sum(self.sums.values()), self.sums.get(number, 0) < _ROUNDS
            if total and more and abs(given - total) <= _SUM_OF_SQUARES * total:
                self.sums[number] = self.sums.get(number, 0) + 1
                here = self.session.here()
                weights = [float(each.detach().double().norm()) for each in _held(optimizer)]
                self.session.emit(protocol.Squares(count=told, norms=norms, weights=weights, ranks=named[1], site=here))


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _norms(optimizer: Optimizer) -> list[float | None]:
    """Of each gradient; none where one is no plain tensor."""
    grads = [each.grad for each in _held(optimizer)]
    if not all(each is None or _is_dense(each) for each in grads):
        return []
    return [None if each is None else float(each.detach().double().norm()) for each in grads]


def _is_dense(tensor: Tensor) -> bool:
    """Whether it is a plain tensor."""
    return not (hasattr(tensor, "full_tensor") or tensor.is_sparse)
