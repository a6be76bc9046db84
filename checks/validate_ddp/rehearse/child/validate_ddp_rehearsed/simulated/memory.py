"""What a rank's tensors hold: parameters, gradients, optimizer state at its first steps, and what autograd keeps."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Handed, around, guarded, patch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer

    from ..session import Session

_STEPS = 2
"""Of each optimizer, of which memory is told: to find all that is alive takes a tenth of a second."""
_DEEP = 4
"""Levels of an optimizer's state in which tensors are looked for."""

Storages = dict[int, int]
"""Bytes of storages by address."""


class Memory:
    """The memory of this process; what lies in the buckets of wrappers is told by ``bucket``."""

    def __init__(self, session: Session) -> None:
        self.session, self.torch = session, session.torch
        self.buckets: weakref.WeakKeyDictionary[DistributedDataParallel, Storages] = weakref.WeakKeyDictionary()
        """Those of the last backward, by wrapper."""
        self.told: dict[int, int] = {}
        self.kept = Kept()

    def install(self) -> None:
        """Local. Event ``memory``."""
        optimizers = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name
        optimizers.register_optimizer_step_post_hook(
            lambda optimizer, args, kwargs: guarded(self.session.fault, "memory", self._stepped, optimizer)
        )
        self.kept.install(self.session)

    def bucket(self, wrapper: Handed, number: int, buffer: Tensor) -> None:
        """The memory of a bucket of a wrapper's gradients, of which number 0 comes first."""
        storage = buffer.untyped_storage()
        held = self.buckets.setdefault(wrapper, {}) if number else {}
        held[storage._cdata] = storage.nbytes()
        self.buckets[wrapper] = held

    def _stepped(self, optimizer: Optimizer) -> None:
        number = self.session.optimizers.of(optimizer)
        self.told[number] = self.told.get(number, 0) + 1
        if self.told[number] <= _STEPS:
            self._tell(number)
        self.kept.forget()

    def _tell(self, number: int) -> None:
        parameters, modules, optimizers = self._alive()
        known: Storages = {}
        counted = protocol.Memory(
            optimizer=number,
            parameters=_new(known, parameters),
            gradients=_new(known, (each.grad for each in parameters if each.is_leaf)),
            buckets=_new(known, (), {key: size for each in self.buckets.values() for key, size in each.items()}),
            state=_new(known, (each for one in optimizers for each in _tensors(one.state, self.torch.Tensor))),
            buffers=_new(known, (each for module in modules for each in module._buffers.values())),
        )
        activations = self.kept.most(self._storages(parameters))
        if activations is not None:
            counted.activations = activations
        self.session.emit(counted)

    def _alive(self) -> tuple[list[Tensor], list[Handed], list[Optimizer]]:
        """Parameters, modules and optimizers. Types are asked, as some objects answer ``isinstance`` by importing."""
        torch = self.torch
        parameters, modules, optimizers = [], [], []
        for each in gc.get_objects():
            kind = type(each)
            if issubclass(kind, torch.Tensor):
                if kind is torch.nn.Parameter or getattr(each, "_is_param", False):
                    parameters.append(each)
            elif issubclass(kind, torch.nn.Module):
                modules.append(each)
            elif issubclass(kind, torch.optim.Optimizer):
                optimizers.append(each)
        return parameters, modules, optimizers

    def _storages(self, parameters: list[Tensor]) -> set[int]:
        return {address for each in parameters for address, _ in _storage(each)}


class Kept:
    """What autograd keeps for backwards, each storage once, as long as it is kept."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        """By address, how often it is kept."""
        self.sizes: Storages = {}
        self.peak = 0
        self.at_peak: Storages = {}
        self.on = True

    def install(self, session: Session) -> None:
        """Local. At the bottom of the script's own hooks. What does not go together with any hooks takes ours off."""
        autograd = session.torch._C._autograd

        def without(original: Handed) -> Handed:
            def disable(*args: object, **kwargs: object) -> object:
                if self.on:
                    self.on = False
                    autograd._pop_saved_tensors_default_hooks()
                return original(*args, **kwargs)

            return disable

        patch(autograd, "_saved_tensors_hooks_disable", without)
        autograd._push_saved_tensors_default_hooks(lambda tensor: _Saved(self, tensor), _Saved.given)
        around(session.torch.autograd, "backward", session.fault, lambda args, kwargs: self.look())

    def look(self) -> None:
        """At the start of a backward, when the most is kept."""
        now = sum(self.sizes[address] for address in self.live)
        if now > self.peak:
            self.peak, self.at_peak = now, {address: self.sizes[address] for address in self.live}

    def forget(self) -> None:
        """The step is over: what the next one keeps is looked at anew."""
        self.peak, self.at_peak = 0, {}

    def most(self, without: set[int]) -> int | None:
        """The most that was kept at the start of a backward, but for some storages; None where it was not counted."""
        if not self.on:
            return None
        return sum(count for address, count in self.at_peak.items() if address not in without)


class _Saved:
    """A tensor that autograd keeps, until it lets go of it."""

    __slots__ = ("address", "kept", "tensor", "version")

    def __init__(self, kept: Kept, tensor: Tensor) -> None:
        self.tensor, self.kept, self.version = tensor, kept, tensor._version
        self.address, size = next(_storage(tensor), (0, 0))
        kept.live[self.address] = kept.live.get(self.address, 0) + 1
        kept.sizes[self.address] = size

    def given(self) -> Tensor:
        """The tensor, for a backward. Raises RuntimeError where it is no longer what it was, which autograd says itself
        where there are no hooks."""
        if self.tensor._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation"
            )
        return self.tensor

    def __del__(self) -> None:
        count = self.kept.live.get(self.address, 1) - 1
        if count:
            self.kept.live[self.address] = count
        else:
            self.kept.live.pop(self.address, None)
            self.kept.sizes.pop(self.address, None)


def _storage(tensor: Handed) -> Iterator[tuple[int, int]]:
    """Address and bytes of where a tensor lies; of a shard, of its local part. Nothing of what has no memory."""
    for name in ("_local_tensor", "elem"):
        inner = getattr(tensor, name, None) if type(tensor).__name__ in ("DTensor", "AsyncCollectiveTensor") else None
        if inner is not None:
            tensor = inner
    if tensor.device.type == "meta":
        return
    try:
        storage = tensor.untyped_storage()
        yield int(storage._cdata), int(storage.nbytes())
    except (RuntimeError, NotImplementedError, AttributeError):  # of a wrapper, or sparse
        return


def _new(known: Storages, tensors: Iterable[Tensor | None], more: Storages | None = None) -> int:
    """Bytes of what is not known yet, and is from now on."""
    found = {address: size for each in tensors if each is not None for address, size in _storage(each)}
    found = {address: size for address, size in {**found, **(more or {})}.items() if address not in known}
    known.update(found)
    return sum(found.values())


def _tensors(held: Handed, kind: type, depth: int = _DEEP) -> Iterator[Tensor]:
    if isinstance(held, kind):
        yield held
    elif depth and isinstance(held, dict):
        for each in held.values():
            yield from _tensors(each, kind, depth - 1)
    elif depth and isinstance(held, (list, tuple)):
        for each in held:
            yield from _tensors(each, kind, depth - 1)
