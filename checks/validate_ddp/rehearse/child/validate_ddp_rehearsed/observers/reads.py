"""What the result of a call depends on: which of some tensors flow into it, followed operation by operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..patching import Handed, guarded

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import ModuleType, TracebackType

    from torch import Tensor

    from ..session import Session

_OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_")
_DEPTH = 4


class Reading:
    """A call that is looked at, to be entered like a context. asked: tensors, by place. rows: the lengths of its
    inputs. inputs: digests of them."""

    def __init__(
        self, session: Session, model: int, mode: tuple[bool, bool], asked: Mapping[int, Tensor], given: object
    ) -> None:
        self.torch, self.fault, self.sent = session.torch, session.fault, session.calls.sent
        self.model, self.mode = model, mode
        self.rows, self.inputs = inputs_of(session.torch, given), digests_of(session, given)
        self.flows: dict[int, frozenset[int]] = {}
        """By address of a storage, which of the tensors asked for have flowed into it."""
        for at, each in asked.items():
            if address := _address(each):
                self.flows[address] = self.flows.get(address, frozenset()) | {at}
        # Who follows operations by modes of their own would see ours.
        follows = bool(self.flows) and not self.torch._C._len_torch_dispatch_stack()
        self.following: AbstractContextManager[object] | None = _mode(self) if follows else None

    def __enter__(self) -> None:
        if self.following is not None:
            self.following.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.following is not None:
            self.following.__exit__(kind, error, at)

    def found(self, result: object) -> list[int]:
        """The places of those tensors that the result depends on."""
        if self.following is None:
            return []
        flowed = (self.flows.get(_address(each), ()) for each in _within(self.torch, result))
        return sorted({at for places in flowed for at in places})

    def flow(self, function: Handed, args: object, kwargs: object, result: object) -> None:
        """An operation was carried out. What it returns depends on all that it was given, but for running statistics
        that it updates without a look at them."""
        name = function._schema.name.rpartition("::")[2]
        given = list(_within(self.torch, (args, kwargs)))
        if "batch_norm" in name and "backward" not in name:
            given = list(_of_batch_norm(function, name, args, given))
        held = {address for each in given if (address := _address(each))}
        source = frozenset[int]().union(*(self.flows.get(each, frozenset()) for each in held))
        for each in _within(self.torch, result):
            address = _address(each)
            if not address:
                continue
            if address not in held:
                self.flows[address] = source
            elif name in _OVERWRITES and each.numel() * each.element_size() == each.untyped_storage().nbytes():
                others = (self.flows.get(other, frozenset()) for other in held if other != address)
                self.flows[address] = frozenset[int]().union(*others)
            elif source:
                self.flows[address] = self.flows.get(address, frozenset()) | source


def inputs_of(torch: ModuleType, given: object) -> list[int]:
    """How many rows the tensors have that a module is called with."""
    return sorted({int(each.shape[0]) for each in _within(torch, given) if each.dim()})


def digests_of(session: Session, given: object) -> list[int | None]:
    """A digest of each tensor that a module is called with; None for what is no plain one."""
    return session.digests(list(_within(session.torch, given))[:_GIVEN])


_GIVEN = 16
"""Tensors of one call that are looked at."""


def _of_batch_norm(function: Handed, name: str, args: object, given: list[Tensor]) -> Iterator[Tensor]:
    values = dict(zip((each.name for each in function._schema.arguments), args, strict=False))  # type: ignore[call-overload]
    trains = values.get("training", values.get("train", "with_update" in name))
    unread = [values.get("running_mean"), values.get("running_var")] if trains else []
    for each in given:
        if not any(each is other for other in unread):
            yield each


def _address(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0  # without memory


def _within(torch: ModuleType, value: Handed, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEPTH and isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _within(torch, each, depth + 1)
    elif depth < _DEPTH and hasattr(value, "__dataclass_fields__"):
        yield from _within(torch, vars(value), depth + 1)


def _mode(reading: Reading) -> AbstractContextManager[object]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Following(TorchDispatchMode):  # type: ignore[misc]  # torch is Any where it is not installed
        def __torch_dispatch__(self, func: Handed, types: Handed, args: Handed = (), kwargs: Handed = None) -> Handed:
            result = func(*args, **(kwargs or {}))
            guarded(reading.fault, "reads", reading.flow, func, args, kwargs, result)
            return result

    mode: AbstractContextManager[object] = Following()
    return mode
