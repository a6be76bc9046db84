"""Optimizer steps: digests of gradients before and of parameters after each, and ``zero_grad``."""

from __future__ import annotations

import sys
import time
import weakref
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Handed, around, guarded

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    from ..session import Session

_NORMS = 3
"""Steps of which the norms of the gradients are told, where DDP does not average them."""


def install(session: Session) -> None:
    """Local. Events ``optimizer``, ``parameters``, ``step``, ``zero_grad`` and ``stopped``."""
    torch = session.torch
    observer = _Steps(session)
    session.digests = observer.digests
    session.after_backward.append(lambda: guarded(session.fault, "step", observer.left_by_backward))
    module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name
    around(
        module.Optimizer, "__init__", session.fault, lambda args, kwargs: args[0],
        lambda optimizer, result: observer.made(optimizer),
    )  # fmt: skip
    module.register_optimizer_step_pre_hook(
        lambda optimizer, args, kwargs: guarded(session.fault, "step", observer.before, optimizer)
    )
    module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: observer.after(optimizer))
    around(module.Optimizer, "add_param_group", session.fault, lambda args, kwargs: observer.adding(args[0]))
    around(module.Optimizer, "zero_grad", session.fault, lambda args, kwargs: observer.zeroed(args[0]))
    around(torch.nn.Module, "zero_grad", session.fault, lambda args, kwargs: observer.zeroed_module(args[0]))


class _Steps:
    """The optimizers of this process and their steps."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.torch = session.torch
        self.numbers = session.optimizers
        self.counts: dict[int, int] = {}
        self.told: dict[int, int] = {}
        """Of how many parameters of an optimizer it was told; groups are added behind those that it has."""
        self.added: dict[int, protocol.Site] = {}
        """Where the last of them were added."""
        self.placed: dict[int, set[int]] = {}
        """Places of an optimizer's parameters that a mesh replicates: of these the rank's part is compared."""
        self.grads: dict[int, list[int | None]] = {}
        self.norms: dict[int, list[float | None]] = {}
        self.without: dict[int, int] = {}
        self.reduced: dict[int, list[int]] = {}
        self.alive: list[weakref.ref[Optimizer]] = []
        self.as_left: dict[int, bool] = {}
        self.left: dict[int, list[int | None]] = {}
        """Digests of the parameters after the last step, where DDP does not hold all of them."""
        self.rewritten: dict[int, bool] = {}
        """Whether something else has changed them since, as an average of the ranks does."""

    def made(self, optimizer: Optimizer) -> None:
        self.alive.append(weakref.ref(optimizer))
        told = protocol.Optimizer(
            optimizer=self.numbers.of(optimizer), kind=type(optimizer).__name__, site=self.session.here(),
            inner=self.session.sites.within("distributed/optim"),
        )  # fmt: skip
        self.session.emit(told)

    def left_by_backward(self) -> None:
        """Keeps what gradients are before the script reduces them by itself."""
        if not self._shared() or self.session.wrapped:
            return
        for optimizer in (each() for each in self.alive):
            if optimizer is None or self.counts.get(self.numbers.of(optimizer), 0) >= _NORMS:
                continue
            grads = [each.grad for each in self.parameters(optimizer) if each.grad is not None]
            for grad, digest in zip(grads, self.digests(grads), strict=True):
                if digest is not None:
                    self.session.calls.left[grad.data_ptr(), grad.numel()] = digest

    def parameters(self, optimizer: Optimizer) -> list[Tensor]:
        return [each for group in optimizer.param_groups for each in group["params"]]

    def before(self, optimizer: Optimizer) -> None:
        number = self.numbers.of(optimizer)
        held = self.parameters(optimizer)
        self.counts.setdefault(number, 0)
        if len(held) > self.told.get(number, 0):
            self._tell(number, held[self.told.get(number, 0) :])
        self.grads[number] = self.digests([each.grad for each in held])
        self.without[number] = _without(held)
        self.reduced[number] = self._reduced(held)
        self.as_left[number] = self._as_left(held)
        if any(self._name(each) is None for each in held) and self._shared():
            if self.counts[number] < _NORMS:
                self.norms[number] = self._norms([each.grad for each in held])
            now = self.digests(self._parts(number, held))
            self.rewritten[number] = number in self.left and now != self.left[number]

    def adding(self, optimizer: Optimizer) -> None:
        if self.numbers.get(optimizer) in self.counts:
            self.added[self.numbers.of(optimizer)] = self.session.here()

    def _tell(self, number: int, new: list[Tensor]) -> None:
        """Of the parameters that an optimizer is about to step on for the first time."""
        first = self.told.get(number, 0)
        self.told[number] = first + len(new)
        replicas = [_replicas(each) for each in new]
        self.placed.setdefault(number, set()).update(first + at for at, ranks in enumerate(replicas) if ranks)
        told = protocol.Parameters(
            optimizer=number, names=[self._name(each) for each in new], shapes=[list(each.shape) for each in new],
            before=self.digests([_part(each) if ranks else each for each, ranks in zip(new, replicas, strict=True)]),
            frozen=sum(not each.requires_grad for each in new),
            talking=[at for at, each in enumerate(new) if self._is_part(each)], replicas=replicas,
            mesh=next((mesh for each in new if (mesh := _mesh(each))), []), site=self.added.get(number),
        )  # fmt: skip
        self.session.emit(told)

    def _is_part(self, parameter: Tensor) -> bool:
        """Whether a parameter is each rank's own, or of a module that may lie on all of them."""
        own = self.session.own.get(id(parameter))
        return (own is not None and own() is parameter) or self.session.talks(parameter)

    def _parts(self, number: int, held: list[Tensor]) -> list[Tensor]:
        """The parameters, in the place of those that a mesh replicates this rank's part of them."""
        placed = self.placed.get(number)
        return [_part(each) if at in placed else each for at, each in enumerate(held)] if placed else held

    def _reduced(self, held: list[Tensor]) -> list[int]:
        """The places of those whose gradients the script has reduced itself."""
        reduced = self.session.calls.reduced if self.torch.distributed.is_available() else None
        if not reduced:
            return []
        grads = ((at, each.grad) for at, each in enumerate(held) if each.grad is not None)
        return [at for at, grad in grads if _is_plain(grad) and (grad.data_ptr(), grad.numel()) in reduced]

    def _as_left(self, held: list[Tensor]) -> bool:
        """Whether the script has reduced all gradients just as the last backward has left them."""
        if not self.torch.distributed.is_available():
            return False
        grads = [each.grad for each in held if each.grad is not None]
        places = {(each.data_ptr(), each.numel()) for each in grads if _is_plain(each)}
        return 0 < len(places) == len(grads) and places <= self.session.calls.as_left

    def _shared(self) -> bool:
        """Whether there are other ranks."""
        dist = self.torch.distributed
        return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)

    def _norms(self, tensors: list[Tensor]) -> list[float | None]:
        """Of each tensor, which tell whether ranks differ by more than rounding; None for what is no plain one."""
        torch = self.torch
        kinds = (torch.Tensor, torch.nn.Parameter)
        with torch.no_grad():
            return [
                float(each.detach().norm()) if type(each) in kinds and _is_plain(each) else None for each in tensors
            ]

    def _name(self, parameter: Tensor) -> protocol.Name | None:
        entry = self.session.wrapped.get(id(parameter))
        return protocol.Name(entry[1], entry[2]) if entry is not None and entry[0]() is parameter else None

    def after(self, optimizer: Optimizer) -> None:
        guarded(self.session.fault, "step", self._told, optimizer)
        limit = self.session.options.get("stop_after")
        if limit and self.counts.get(self.numbers.get(optimizer) or 0, 0) >= limit:
            self.session.emit(protocol.Stopped())
            while True:  # the command ends all ranks once each has come here
                time.sleep(1)

    def _told(self, optimizer: Optimizer) -> None:
        number = self.numbers.of(optimizer)
        self.counts[number] = self.counts.get(number, 0) + 1
        held = self.parameters(optimizer)
        params = self.digests(self._parts(number, held))
        if number in self.rewritten:
            self.left[number] = params
        told = protocol.Step(
            optimizer=number, count=self.counts[number], grads=self.grads.pop(number, None),
            params=params, site=self.session.here(),
            rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            norms=self.norms.pop(number, None), rewritten=self.rewritten.pop(number, None),
            reduced=self.reduced.pop(number, ()), as_left=self.as_left.pop(number, False),
            # A closure makes the gradients while the optimizer steps; others are gone by its end.
            without=min(self.without.pop(number, len(held)), _without(held)),
            busy=time.process_time() if self.counts[number] == 1 else 0.0,
        )  # fmt: skip
        self.session.emit(told)
        limit = self.session.options.get("max_steps")
        if limit and self.counts[number] > limit and not self.session.loaders.iterations:
            self.session.note(
                "--max-steps does not end this run, whose batches come from no loader: --stop-after N does",
                at_once=True,
            )

    def zeroed(self, optimizer: Optimizer) -> None:
        had = any(each.grad is not None for each in self.parameters(optimizer))
        number = self.numbers.of(optimizer)
        self.session.emit(protocol.ZeroGrad(optimizer=number, had=had, site=self.session.here()))

    def zeroed_module(self, module: Module) -> None:
        had = any(each.grad is not None for each in module.parameters())
        self.session.emit(protocol.ZeroGrad(optimizer=None, had=had, site=self.session.here()))

    def digests(self, tensors: list[Tensor]) -> list[int | None]:
        """A sum over the bits of each tensor; None for what is no plain dense tensor."""
        torch = self.torch
        sums: list[Tensor] = []
        places: list[int] = []
        with torch.no_grad():
            for index, tensor in enumerate(tensors):
                if tensor is not None and type(tensor) in (torch.Tensor, torch.nn.Parameter) and _is_plain(tensor):
                    sums.append(_bits(torch, tensor.detach()))
                    places.append(index)
        found: list[int | None] = [None] * len(tensors)
        for index, value in zip(places, torch.stack(sums).tolist() if sums else (), strict=True):
            found[index] = value
        return found


def _replicas(tensor: Handed) -> list[int]:
    """The ranks that hold the same of a tensor on a mesh, by where it says that it is placed; none for others."""
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None or placements is None or not hasattr(tensor, "_local_tensor"):
        return []
    here = mesh.get_coordinate()
    if here is None or any(each.is_partial() for each in placements):
        return []
    place = tuple(slice(None) if each.is_replicate() else at for each, at in zip(placements, here, strict=True))
    ranks = [int(each) for each in mesh.mesh[place].reshape(-1).tolist()]
    return ranks if len(ranks) > 1 else []


def _mesh(tensor: Handed) -> list[int]:
    """The ranks over which a tensor is sharded."""
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None) or ()
    if mesh is None or all(each.is_replicate() for each in placements):
        return []
    return [int(each) for each in mesh.mesh.reshape(-1).tolist()]


def _part(tensor: Handed) -> Tensor:
    part: Tensor = tensor._local_tensor
    return part


def _without(held: list[Tensor]) -> int:
    """How many of them have no gradient."""
    return sum(each.grad is None for each in held)


def _is_plain(tensor: Tensor) -> bool:
    if str(tensor.layout) != "torch.strided" or not tensor.numel():
        return False
    return bool(tensor.untyped_storage().nbytes())  # FSDP frees the memory of tensors that it keeps: to read it crashes


def _bits(torch: ModuleType, tensor: Tensor) -> Tensor:
    """Sum of the tensor's memory read as integers, as wide as its size allows: 18 GB/s."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.contiguous().view(-1)
    size = flat.element_size()
    if size < 8 and (flat.numel() * size) % 8 == 0 and flat.storage_offset() * size % 8 == 0:
        return flat.view(torch.int64).sum()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return flat.view(kind).sum(dtype=torch.int64)
