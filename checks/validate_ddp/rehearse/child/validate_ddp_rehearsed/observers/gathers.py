"""Whether what a raw gather gave reaches a loss: the first few are followed through the functions of torch.

A mode that sees every function taxes each of them, so it is on only between a gather and the next backward.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Kwargs, guarded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType

    from torch import Tensor

    from ..patching import Original
    from ..session import Session

_OUTPUTS = {
    "all_gather": ("tensor_list", "tensor"),
    "all_gather_into_tensor": ("output_tensor", "input_tensor"),
    "all_gather_single": ("output", "input"),
}
_PUTS = {
    "cat", "concat", "concatenate", "stack", "vstack", "hstack", "row_stack", "__setitem__", "copy_", "index_copy",
    "index_copy_", "index_put", "index_put_", "where", "scatter", "scatter_", "slice_scatter", "select_scatter",
}  # fmt: skip
"""Functions that put rows beside others. One that multiplies them with others, as a similarity, puts none back."""
_FOLLOWED = 2
"""Gathers of one place that are followed."""


def install(session: Session) -> None:
    """Local. Event ``gathered``: a loss that was gathered for, without a gradient."""
    follower = _Follower(session)
    session.calls.listeners.append(follower.gathered)
    session.before_backward.append(lambda tensors: guarded(session.fault, "gathers", follower.backward, tensors))


class _Source:
    """A gather that is followed. own: whether the rank's own rows were put among what it gave."""

    def __init__(self, site: protocol.Site, op: str, rows: Tensor) -> None:
        self.site, self.op, self.rows = site, op, rows
        self.own = False


class _Follower:
    """The gathers that are being followed, and the tensors that were made of what they gave."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.torch = session.torch
        self.counts: dict[protocol.Site, int] = {}
        self.tainted: dict[int, tuple[weakref.ref[Tensor], frozenset[int]]] = {}
        self.sources: dict[int, _Source] = {}
        self.mode: object = None

    def gathered(self, name: str, values: Kwargs) -> None:
        if name not in _OUTPUTS or not self.session.training:
            return
        outputs, given = (values.get(key) for key in _OUTPUTS[name])
        if given is None or not given.requires_grad or self._in_function():
            return
        site = self.session.here()
        self.counts[site] = self.counts.get(site, 0) + 1
        if self.counts[site] > _FOLLOWED:
            return
        source = len(self.sources)
        self.sources[source] = _Source(site, name, given.detach())
        for each in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
            self._taint(each, frozenset([source]))
        self._watch()

    def _in_function(self) -> bool:
        """Whether an ``autograd.Function`` gathers: it brings its own gradient."""
        import sys

        frame: FrameType | None = sys._getframe(3)
        while frame is not None:
            path = frame.f_code.co_filename
            if path.endswith(("autograd/function.py", "distributed/nn/functional.py")):
                return True
            frame = frame.f_back
        return False

    def _taint(self, tensor: Tensor, sources: frozenset[int]) -> None:
        self.tainted[id(tensor)] = (weakref.ref(tensor), sources)

    def _of(self, tensor: Tensor) -> frozenset[int]:
        held = self.tainted.get(id(tensor))
        return held[1] if held is not None and held[0]() is tensor else frozenset()

    def _watch(self) -> None:
        stack = self.torch._C
        if self.mode is None and stack._len_torch_function_stack() == 0:
            self.mode = _mode(self)
            stack._push_on_torch_function_stack(self.mode)

    def _release(self) -> None:
        stack, above = self.torch._C, []
        while self.mode is not None and stack._len_torch_function_stack():
            top = stack._pop_torch_function_stack()
            if top is self.mode:
                break
            above.append(top)
        for each in reversed(above):
            stack._push_on_torch_function_stack(each)
        self.mode = None

    def called(self, name: str, args: Args, kwargs: Kwargs, result: object) -> None:
        """After each function of torch: what comes of a gathered tensor is followed on."""
        tensors = [*_flat(args), *_flat(tuple(kwargs.values()))]
        sources: frozenset[int] = frozenset().union(*(self._of(each) for each in tensors))
        if not sources:
            return
        for source in sources:
            rows = self.sources[source].rows
            # The own rows, put among the gathered ones. What was gathered may be a contiguous copy of them.
            if name in _PUTS and any(
                each.requires_grad and not self._of(each) and self._equal(each, rows) for each in tensors
            ):
                self.sources[source].own = True
        for each in [*_flat((result,)), *(tensors[:1] if result is None else ())]:
            self._taint(each, sources)

    def _equal(self, one: Tensor, other: Tensor) -> bool:
        return bool(one.shape == other.shape and one.dtype == other.dtype and self.torch.equal(one.detach(), other))

    def backward(self, tensors: Sequence[Tensor]) -> None:
        if not self.sources:
            return
        losses = list(_flat(tensors if isinstance(tensors, (list, tuple)) else (tensors,)))
        self._release()
        here = self.session.here()
        for source in sorted(frozenset().union(*(self._of(each) for each in losses))):
            held = self.sources[source]
            self.session.emit(protocol.Gathered(op=held.op, own=held.own, site=held.site, backward=here))
        self.sources.clear()
        self.tainted.clear()


def _flat(values: Iterable[object]) -> Iterator[Tensor]:
    for each in values:
        if hasattr(each, "requires_grad"):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _flat(each)


def _mode(follower: _Follower) -> object:
    base = follower.torch.overrides.TorchFunctionMode

    class Following(base):  # type: ignore[misc,valid-type]
        """Sees each function of torch."""

        def __torch_function__(
            self, function: Original, types: object, args: Args = (), kwargs: Kwargs | None = None
        ) -> object:
            result = function(*args, **(kwargs or {}))
            guarded(
                follower.session.fault,
                "gathers",
                follower.called,
                getattr(function, "__name__", ""),
                args,
                kwargs or {},
                result,
            )
            return result

    return Following()
