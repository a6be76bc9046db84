"""DistributedDataParallel: its construction, its forwards, the backwards that reduce gradients, and ways round it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Kwargs, Numbering, around, one_number

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel

    from ..session import Session
    from .collectives import Opened

    _Made = tuple[Opened, DistributedDataParallel, Module]


def install(session: Session) -> None:
    """Local. Events ``ddp``, ``forward``, ``backward``, their ``done``, and ``inner_forward``."""
    observer = _Wrappers(session)
    ddp = session.torch.nn.parallel.DistributedDataParallel
    around(ddp, "__init__", session.fault, observer.constructing, observer.constructed, observer.refused)
    around(ddp, "forward", session.fault, observer.forward, observer.forwarded, observer.broken)
    autograd = session.torch.autograd
    around(autograd, "backward", session.fault, observer.backward, observer.reduced, observer.broken)


_Under = tuple[int, int | None]
"""The number of a call that is under way, and that of the wrapper whose forward it is."""


class _Wrappers:
    """The wrappers of this process."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.torch = session.torch
        self.numbers = Numbering()
        self.inner: dict[int, tuple[weakref.ref[Module], int]] = {}
        self.classes: set[type] = set()
        self.inside = 0
        self.armed: set[int] = set()
        self.reducing: set[int] = set()
        """Wrappers that have reduced gradients: at the next forward with gradients they agree on new buckets, once."""
        self.rebuilt: set[int] = set()
        self.before: dict[int, list[tuple[int, int] | None]] = {}
        self.groups: dict[int, ProcessGroup] = {}
        self.wrappers: dict[int, weakref.ref[DistributedDataParallel]] = {}

    def constructing(self, args: Args, kwargs: Kwargs) -> _Made:
        module = args[1] if len(args) > 1 else kwargs.get("module")
        token = self.session.calls.open(self.session.calls.made("DistributedDataParallel"), kwargs.get("process_group"))
        return token, args[0], module

    def refused(self, token: _Made | None, error: BaseException) -> None:
        self.session.calls.failed(token and token[0], error)

    def constructed(self, token: _Made | None, result: object) -> None:
        self.session.calls.end(token and token[0], result)
        if token is None:
            return
        _, wrapper, module = token
        number = self.numbers.of(wrapper)
        modules = list(module.modules())
        norms = self.torch.nn.modules.batchnorm._BatchNorm
        synced = self.torch.nn.SyncBatchNorm
        kind = type(wrapper)
        self.groups[number] = wrapper.process_group
        self.wrappers[number] = weakref.ref(wrapper)
        told = protocol.Ddp(
            ddp=number, site=self.session.here(),
            parameters=sum(1 for each in module.parameters() if each.requires_grad),
            buffers=len(list(module.buffers())),
            nested=any(isinstance(each, kind) for each in modules),
            batch_norms=sum(isinstance(each, norms) and not isinstance(each, synced) for each in modules),
            find_unused=bool(getattr(wrapper, "find_unused_parameters", False)),
        )  # fmt: skip
        self.session.emit(told)
        ignored = getattr(wrapper, "parameters_to_ignore", ())  # as a rank's experts: neither broadcast nor averaged
        for name, parameter in module.named_parameters():
            if name in ignored:
                self.session.own[id(parameter)] = weakref.ref(parameter)
            if name in ignored or not parameter.requires_grad:
                continue
            self.session.wrapped[id(parameter)] = (weakref.ref(parameter), number, name)
        self._watch(module, number)

    def _watch(self, module: Module, number: int) -> None:
        """Sees calls of the wrapped module itself, by its class: a hook on the module would be saved along with it."""
        self.inner[id(module)] = (weakref.ref(module), number)
        kind = type(module)
        if kind in self.classes:
            return
        self.classes.add(kind)
        original = kind.__call__

        def call(module: Module, *args: object, **kwargs: object) -> object:
            if not self.inside and id(module) in self.inner:
                self._bypassed(module)
            return original(module, *args, **kwargs)

        call.__wrapped__ = original  # type: ignore[attr-defined]
        kind.__call__ = call

    def _bypassed(self, module: Module) -> None:
        held = self.inner[id(module)]
        if module.training and self.torch.is_grad_enabled() and held[0]() is module:
            self.session.emit(protocol.InnerForward(ddp=held[1], site=self.session.here()))

    def forward(self, args: Args, kwargs: Kwargs) -> _Under | None:
        wrapper = args[0]
        self.inside += 1
        number = self.numbers.get(wrapper)
        if number is None:
            return None
        grad = self.torch.is_grad_enabled()
        sync = bool(wrapper.require_backward_grad_sync)
        if grad and sync:
            self.armed.add(number)
        rebuilds = (
            grad and number in self.reducing - self.rebuilt and not getattr(wrapper, "find_unused_parameters", False)
        )
        if rebuilds:
            self.rebuilt.add(number)
        named = self.session.calls.group_name(self.groups[number])
        call = self.session.next_call()
        told = protocol.Forward(
            n=call, ddp=number, grad=grad, sync=sync, training=wrapper.training,
            group=named[0] if named else None, ranks=named[1] if named else [],
            # Also while evaluating: what counts is whether the wrapper broadcasts its buffers.
            waits=bool(wrapper.will_sync_module_buffers()), rows=_rows(args[1:], kwargs), site=self.session.here(),
            rebuilds=rebuilds, sequence=not self.session.calls.joined,
        )  # fmt: skip
        self.session.emit(told)
        self.session.calls.depth += 1  # the broadcast of buffers is part of the forward
        self.session.calls.forwards += 1
        return (call, number)

    def forwarded(self, token: _Under | None, result: object) -> None:
        self.inside -= 1
        if token is not None:
            self.session.calls.depth -= 1
            self.session.calls.forwards -= 1
            self.session.emit(protocol.Done(n=token[0]))

    def broken(self, token: _Under | None, error: BaseException) -> None:
        if token is None:
            return
        if token[1] is not None:
            self.inside -= 1
            self.session.calls.forwards -= 1
        self.session.calls.depth -= 1
        self.session.emit(protocol.Done(n=token[0], error=f"{type(error).__name__}: {error}"[:300]))

    def backward(self, args: Args, kwargs: Kwargs) -> _Under:
        held = ((number, self.wrappers[number]()) for number in sorted(self.armed))
        alive = {number: wrapper for number, wrapper in held if wrapper is not None}
        armed = list(alive)
        call = self.session.next_call()
        named = self.session.calls.group_name(self.groups[armed[0]]) if armed else None
        root = args[0] if args else kwargs.get("tensors")
        for listener in self.session.before_backward:
            listener(root)
        told = protocol.Backward(
            n=call, armed=armed, group=named[0] if named else None, ranks=named[1] if named else [],
            waits=bool(armed), site=self.session.here(),
            sync=all(bool(wrapper.require_backward_grad_sync) for wrapper in alive.values()), loss=one_number(root),
            sequence=not self.session.calls.joined,
        )  # fmt: skip
        self.session.emit(told)
        self.session.calls.depth += 1
        self.before = {number: self._grads(wrapper) for number, wrapper in alive.items()} if len(armed) > 1 else {}
        return (call, None)

    def _grads(self, wrapper: DistributedDataParallel | None) -> list[tuple[int, int] | None]:
        """Which gradients a wrapper's parameters have, and how often each was written."""
        held = [] if wrapper is None else [each.grad for each in wrapper.parameters()]
        return [None if each is None else (id(each), each._version) for each in held]

    def reduced(self, token: _Under | None, result: object) -> None:
        # With several wrappers the backward may have been that of one alone, as of a GAN's discriminator.
        untouched = {
            number for number, grads in self.before.items() if grads and grads == self._grads(self.wrappers[number]())
        }
        self.reducing |= self.armed - untouched
        self.armed &= untouched
        if token is not None:
            self.session.calls.depth -= 1
            self.session.emit(protocol.Done(n=token[0]))
        for listener in self.session.after_backward:
            listener()


def _rows(args: Iterable[object], kwargs: Kwargs) -> int | None:
    for each in (*args, *kwargs.values()):
        if isinstance(each, dict):
            return _rows((), each)
        if isinstance(each, (list, tuple)):
            return _rows(each, {})
        if hasattr(each, "shape") and len(each.shape):
            return int(each.shape[0])
    return None
