"""What a rank computes with: the state of the modules that the script calls, in training but for what optimizers move.

That is told after their steps. Left are buffers, frozen copies as a teacher's, and weights that the script moves by
hand. What ranks compute with is compared where they do: when a module is called that is part of no other call, once
between two steps, and after the first of these ever more seldom.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Original, guarded, patch
from .lines import Lines
from .reads import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer

    from ..session import Session

_MODELS, _TENSORS, _NUMBERS = 64, 4096, 1 << 28
"""What is told of a process; of a model: so many tensors, with so many numbers."""
_EACH = 8
"""So many times the state of a model is told each time that it may be another; then at the 16th, 32nd and so on."""
_FOLLOWED = 2
"""Calls of which it is seen what they send, and of which it is followed what their result depends on."""


def install(session: Session) -> None:
    """Local. Events ``model``, ``state`` and ``called``."""
    if session.torch.distributed.is_available():
        _Census(session).install()


class _Known:
    """A module, as it is called with gradients or without, for training or for evaluation."""

    def __init__(self, module: Module) -> None:
        self.module = weakref.ref(module)
        self.moment = (-1, -1)
        self.count = self.followed = 0
        self.first: list[int | None] = []
        """Digests, when it was told of first."""

    def due(self, moment: tuple[int, int]) -> bool:
        """Whether its state is to be told of in a moment; all ranks come to the same."""
        if moment == self.moment:
            return False
        self.moment = moment
        self.count += 1
        return self.count <= _EACH or not self.count & (self.count - 1)

    def changed(self, digests: list[int | None]) -> set[int]:
        """The places of what is no longer as it was at first."""
        if len(self.first) != len(digests):
            self.first = digests
        return {at for at, pair in enumerate(zip(self.first, digests, strict=True)) if pair[0] != pair[1]}


class _Census:
    """The modules of this process that the script calls."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.torch = session.torch
        self.known: dict[tuple[int, bool, bool], _Known] = {}
        self.told = session.models
        self.wrapped: dict[int, _Known] = {}
        """Modules whose buffers a wrapper makes equal, by id of the wrapper."""
        self.models = self.steps = self.backwards = 0
        self.stepped: dict[int, weakref.ref[Optimizer]] = {}
        self.talking: dict[int, weakref.ref[Tensor]] = {}
        """Parameters of modules whose calls send something to other ranks."""
        self.lines = Lines(session)

    def install(self) -> None:
        """Local. From now on."""
        module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name
        module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.moved(optimizer))
        self.session.before_backward.append(self.backward)
        self.session.talks = self.talks
        self.session.moving = self._moving
        self.session.leaving.append(self.lines.stop)
        patch(self.torch.nn.Module, "__call__", self.calls)

    def moved(self, optimizer: Optimizer) -> None:
        self.steps += 1
        known = self.stepped.get(id(optimizer))
        if known is None or known() is not optimizer:
            self.stepped[id(optimizer)] = weakref.ref(optimizer)

    def backward(self, root: object) -> None:
        self.backwards += 1

    def talks(self, tensor: Tensor) -> bool:
        """Whether a parameter is part of a module whose calls send something to other ranks."""
        known = self.talking.get(id(tensor))
        return known is not None and known() is tensor

    def calls(self, original: Original) -> Original:
        census, wrapper = self, self.torch.nn.parallel.DistributedDataParallel
        inside = False

        def call(self: Module, *args: object, **kwargs: object) -> object:  # by this name torch's profiler finds it
            nonlocal inside
            if inside:
                return original(self, *args, **kwargs)
            # What a wrapper calls has been made equal by it, as far as it does that.
            if isinstance(self, wrapper):
                guarded(census.session.fault, "census", census.overwritten, self)
                return original(self, *args, **kwargs)
            inside = True
            try:
                reading = guarded(census.session.fault, "census", census.look, self, (args, kwargs))
                if reading is None:
                    return original(self, *args, **kwargs)
                with reading:
                    result = original(self, *args, **kwargs)
                guarded(census.session.fault, "census", census.called, self, reading, result)
                return result
            finally:
                inside = False

        return call

    def look(self, module: Module, given: object) -> Reading | None:
        """Before a call that is part of no other. Tells of the module's state where that is due; what is to be asked
        of the call itself."""
        torch, session = self.torch, self.session
        training, grad = module.training, torch.is_grad_enabled()
        known = self.known.get((id(module), training, grad))
        if known is None or known.module() is not module:
            if len(self.known) >= _MODELS:
                return None
            known = self.known[id(module), training, grad] = _Known(module)
        steps, backwards = self.steps, 0 if self.steps else self.backwards
        if known.moment == (steps, backwards) or not self._shared():
            return None
        # A backward may compute parts of a forward again.
        if session.calls.depth > session.calls.forwards or not known.due((steps, backwards)):
            return None
        tensors = list(_tensors(module))
        if not tensors or len(tensors) > _TENSORS or sum(each.numel() for _, each in tensors) > _NUMBERS:
            return None
        number = self._model(module, tensors)
        moving = self._moving() if training else ()  # others may be put in their place for an evaluation
        digests = session.digests([None if id(each) in moving else each for _, each in tensors])
        if any(each is not None for each in digests):
            told = protocol.State(
                model=number, digests=digests, training=training, grad=grad, steps=steps, backwards=backwards,
                site=session.here(),
            )  # fmt: skip
            session.emit(told)
        asked: dict[int, Tensor] = {}
        if training and grad:
            self.lines.stop()
            if known.followed < _FOLLOWED:
                changed = {at: tensors[at][1] for at in known.changed(digests) if digests[at] is not None}
                asked = {at: each for at, each in changed.items() if not each.requires_grad}
                known.followed += bool(changed)
                self.lines.start(
                    number, lambda: {at: each for at, (_, each) in enumerate(_tensors(module)) if at in changed}
                )
        if not asked and known.count > _FOLLOWED:
            return None
        return Reading(session, number, (training, grad), asked, given)

    def overwritten(self, wrapper: DistributedDataParallel) -> None:
        """Before a training call of a wrapper that makes buffers those of one rank. Tells what they are."""
        if not (wrapper.training and self.torch.is_grad_enabled() and wrapper.will_sync_module_buffers()):
            return
        known = self.wrapped.get(id(wrapper))
        if known is None or known.module() is not wrapper:
            if len(self.wrapped) >= _MODELS:
                return
            known = self.wrapped[id(wrapper)] = _Known(wrapper)
        steps, backwards = self.steps, 0 if self.steps else self.backwards
        # A hook of the script's may average them.
        if not self._shared() or hasattr(wrapper, "buffer_hook") or not known.due((steps, backwards)):
            return
        module, ignored = wrapper.module, getattr(wrapper, "parameters_to_ignore", ())
        kept, tensors = {*_kept(module)} - {*ignored}, list(_tensors(module))
        if not kept or len(tensors) > _TENSORS or sum(each.numel() for _, each in tensors) > _NUMBERS:
            return
        told = protocol.State(
            model=self._model(module, tensors), training=True, grad=True, steps=steps, backwards=backwards,
            digests=self.session.digests([each if name in kept else None for name, each in tensors]),
            site=self.session.here(), overwritten=True,
        )  # fmt: skip
        self.session.emit(told)

    def called(self, module: Module, reading: Reading, result: object) -> None:
        """After a call that was looked at."""
        talks = self.session.calls.sent > reading.sent
        if talks:
            self.talking.update((id(each), weakref.ref(each)) for each in module.parameters())
        told = protocol.Called(
            model=reading.model, training=reading.mode[0], grad=reading.mode[1], reads=reading.found(result),
            rows=reading.rows, talks=talks, inputs=reading.inputs, site=self.session.here(),
        )  # fmt: skip
        self.session.emit(told)

    def _shared(self) -> bool:
        """Whether there are other ranks, and not of a pretended world."""
        dist = self.torch.distributed
        return bool(dist.is_initialized() and dist.get_world_size() > 1 and self.session.named is None)

    def _moving(self) -> set[int]:
        """What optimizers move, by id."""
        alive = [optimizer for reference in self.stepped.values() if (optimizer := reference()) is not None]
        return {id(each) for optimizer in alive for group in optimizer.param_groups for each in group["params"]}

    def _model(self, module: Module, tensors: list[tuple[str, Tensor]]) -> int:
        """The number of what is told of a module: another one where it is no longer made of the same."""
        wrapped, kept = self.session.wrapped, set(_kept(module))
        now = protocol.Model(
            model=self.models, kind=type(module).__name__, names=[name for name, _ in tensors],
            shapes=[list(each.shape) for _, each in tensors],
            trained=[at for at, (_, each) in enumerate(tensors) if each.requires_grad],
            wrapped=[
                at for at, (_, each) in enumerate(tensors)
                if (entry := wrapped.get(id(each))) is not None and entry[0]() is each
            ],
            buffers=[at for at, (name, _) in enumerate(tensors) if name in kept],
        )  # fmt: skip
        known = self.told.get(id(module))
        if known is None or known[0]() is not module or known[1].made_of != now.made_of:
            self.told[id(module)] = weakref.ref(module), now
            self.models += 1
            self.session.emit(now)
            return now.model
        return known[1].model


def _tensors(module: Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _kept(module: Module) -> Iterator[str]:
    """The buffers of floating point that are part of a module's state."""
    for above, each in module.named_modules():
        for name, buffer in each.named_buffers(recurse=False):
            if name not in each._non_persistent_buffers_set and buffer.is_floating_point():
                yield f"{above}.{name}" if above else name
