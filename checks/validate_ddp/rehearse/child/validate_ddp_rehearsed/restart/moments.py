"""What each optimizer step is made from, told before it: batches, draws, rates, parameters, state, moving averages."""

from __future__ import annotations

import random
import sys
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from .. import protocol
from ..partition.models import plain
from ..patching import Args, Handed, Kwargs, Original, around, guarded, one_number, patch
from .averages import Averages
from .digests import of_bytes, of_tensor, tensors
from .own_steps import OwnSteps
from .saved import watch_saves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..session import Session
    from .begin import Orders

_HOOK = -1
"""The number of ours; those of torch count from zero."""
_AHEAD = 256
"""Batches that may be fetched and passed over before one is trained on."""


class _Fetched(NamedTuple):
    """A batch of a loader. tensors: digests of those in it."""

    loader: int
    turn: int
    indices: list[int] | None
    tensors: frozenset[int]
    digest: int
    after: int


class _Module:
    """An outermost module that is trained. since: the steps before its first call. first, last: numbers of calls."""

    def __init__(self, module: Handed, since: int, first: int) -> None:
        self.reference: weakref.ref[Handed] = weakref.ref(module)
        self.names = [plain(name) for name, _ in module.named_parameters()]
        self.since, self.first, self.last = since, first, first

    def gave_way(self, other: _Module) -> bool:
        """Whether the other one is trained in its place."""
        return bool(other.since) and self.last < other.first and self.names == other.names


class Moments:
    """Of one process."""

    def __init__(self, session: Session, orders: Orders) -> None:
        self.session, self.torch, self.orders = session, session.torch, orders
        self.done = 0
        """Steps so far, of all optimizers."""
        self.fetched: deque[_Fetched] = deque(maxlen=_AHEAD)
        self.modules: list[_Module] = []
        self.calls = 0
        """Of these."""
        self.told: dict[str, list[str]] = {}
        """The names of each aspect as they were told last."""
        self.depth = 0
        self.averages = Averages(session, self.parameters)
        self.own = OwnSteps(session)
        self.taken_by_itself = 0
        """Steps so far without an optimizer."""
        self._begin()

    def _begin(self) -> None:
        self.used: list[_Fetched] = []
        self.inputs: list[int] = []
        self.losses: list[float] = []
        self.scale: list[float] = []
        self.drawn: dict[str, int] = {}

    def install(self) -> None:
        """Local. From now on."""
        session = self.session
        session.loaders.watching.append(self.fetch)
        session.before_backward.append(self.backward)
        patch(self.torch.nn.Module, "__call__", self._called)
        patch(self.torch.amp.GradScaler, "scale", self._scaled)
        module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name
        module.register_optimizer_step_pre_hook(self._come_last)
        self.averages.install()
        watch_saves(session, self.steps)
        session.leaving.append(self.look)
        for name in ("barrier", "destroy_process_group") if self.torch.distributed.is_available() else ():
            around(self.torch.distributed, name, session.fault, lambda args, kwargs: self.look())

    def fetch(self, loader: int, turn: int, indices: list[int] | None, batch: object) -> None:
        """A loader gave a batch."""
        held = [of_tensor(self.torch, each) for each in tensors(self.torch, batch)]
        told = of_bytes(repr(held).encode())
        self.fetched.append(_Fetched(loader, turn, indices, frozenset(held), told, self.steps()))

    def backward(self, root: object) -> None:
        value = one_number(root)
        self.losses.append(value if value is not None else 0.0)

    def current(self) -> list[Handed]:
        """The modules that are trained by now. A script that trains in legs makes its model anew for each, and the one
        of the leg before lives on in cycles or in a list: it has not been called since the other came in its place."""
        held = [(each, each.reference()) for each in self.modules]
        return [module for each, module in held if module is not None and not any(map(each.gave_way, self.modules))]

    def parameters(self) -> list[Handed]:
        """Those of the modules that are trained."""
        return [each for _, each in self.named()]

    def named(self) -> Iterator[tuple[str, Handed]]:
        """All parameters that are trained, each with its name."""
        for number, module in enumerate(self.current()):
            for name, each in module.named_parameters():
                yield f"model {number}: {plain(name)}" if number else plain(name), each

    def _called(self, original: Original) -> Original:
        moments = self

        def call(self: Handed, *args: object, **kwargs: object) -> object:  # by this name torch's profiler finds it
            if moments.depth or not moments.torch.is_grad_enabled():
                return original(self, *args, **kwargs)
            moments.depth += 1
            try:
                guarded(moments.session.fault, "moments", moments._training, self, (args, kwargs))
                return original(self, *args, **kwargs)
            finally:
                moments.depth -= 1

        return call

    def _training(self, module: Handed, given: object) -> None:
        self.look()
        if not any(each.requires_grad for each in module.parameters()):
            return
        self.calls += 1
        known = next((each for each in self.modules if each.reference() is module), None)
        if known is None:
            known = _Module(module, self.done, self.calls)
            self.modules.append(known)
        known.last = self.calls
        self.own.begins(self.named())
        if not self.drawn:
            self.drawn = self._randomness()
        digests = [of_tensor(self.torch, each) for each in tensors(self.torch, given)]
        for held in reversed(self.fetched):
            if held.tensors.intersection(digests):
                if held not in self.used:
                    self.used.append(held)
                return
        self.inputs += digests

    def _randomness(self) -> dict[str, int]:
        found = {"torch": of_tensor(self.torch, self.torch.random.default_generator.get_state())}
        found["python"] = of_bytes(repr(random.getstate()).encode())
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            found["numpy"] = of_bytes(repr([str(each) for each in numpy.random.get_state()[1:]]).encode())
        return found

    def _scaled(self, original: Original) -> Original:
        def scaled(scaler: Handed, *args: object, **kwargs: object) -> object:
            result = original(scaler, *args, **kwargs)
            guarded(self.session.fault, "moments", lambda: self.scale.append(float(scaler.get_scale())))
            return result

        return scaled

    def _come_last(self, optimizer: Handed, args: Args, kwargs: Kwargs) -> None:
        """The optimizer's own hooks, which are called after this one, may set its rates."""
        hooks = optimizer._optimizer_step_pre_hooks
        hooks.pop(_HOOK, None)
        hooks[_HOOK] = self.stepping

    def stepping(self, optimizer: Handed, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """A step begins. One that is given its forward and backward, as by Lightning, is told when these are done."""
        closure: Handed = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self.before(optimizer)
            return None
        waiting = [optimizer]

        def evaluated() -> object:
            loss = closure()
            if waiting:
                self.before(waiting.pop())
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": evaluated}
        return (args[0], evaluated, *args[2:]), kwargs

    def before(self, optimizer: Handed) -> None:
        """An optimizer is about to step. Does not return where the run is to end here."""
        if self.session.sites.within("checkpoint/state_dict"):
            return  # a step of nothing, by which torch makes a state to load into
        self.done, self.taken_by_itself = self.done - self.taken_by_itself, 0  # they were none: something was loaded
        self._take(optimizer, {})

    def look(self) -> None:
        """Whether the script has taken a step of its own since its last backward."""
        before = self.own.taken() if self.losses else {}
        if before:
            self._take(None, before)
            self.taken_by_itself += 1

    def steps(self) -> int:
        """Those that have been taken."""
        self.look()
        return self.done

    def _take(self, optimizer: Handed | None, before: dict[str, int]) -> None:
        """A step of this optimizer; of the script's own, with what the parameters were before it."""
        guarded(self.session.fault, "moments", self._tell, optimizer, before)
        self._begin()
        if self.orders["stop"] is not None and self.done >= self.orders["stop"]:
            self.session.emit(protocol.Stopped())
            while True:  # the command ends all ranks once each has come here
                time.sleep(1)
        self.done += 1

    def _tell(self, optimizer: Handed | None, before: dict[str, int]) -> None:
        used = self.used or [each for each in self.fetched if each.after == self.done][-max(1, len(self.losses)) :]
        known = [each.indices for each in used]
        told = protocol.Moment(
            optimizer=0 if optimizer is None else self.session.optimizers.of(optimizer), count=self.done,
            site=self.session.here(),
            turns=[each.loader << 20 | each.turn for each in used], sizes=[len(each.indices or ()) for each in used],
            samples=[index for each in known for index in each or ()] if used and all(known) else None,
            batches=[each.digest for each in used], inputs=self.inputs, losses=self.losses, scale=self.scale[:1],
        )  # fmt: skip
        rates = list(_rates(optimizer)) if optimizer is not None else []
        told.rate_names, told.rates = [name for name, _ in rates], [value for _, value in rates]
        digests, names = {}, {}
        for aspect, held in (self._own(before) if optimizer is None else self._aspects(optimizer)).items():
            digests[aspect] = list(held.values())
            if self.told.get(aspect) != list(held):
                names[aspect] = self.told[aspect] = list(held)
        told.digests, told.names = digests, names
        self.session.emit(told)

    def _own(self, before: dict[str, int]) -> dict[str, dict[str, int]]:
        """Of a step of the script's own, of whose state nothing is known."""
        whole = {"whole": before} if self.done == self.orders["whole"] else {}
        return {"parameters": before, **self._around(), **whole}

    def _around(self) -> dict[str, dict[str, int]]:
        held = [pair for module in self.current() for pair in module.named_buffers() if pair[1] is not None]
        return {
            "buffers": {plain(name): of_tensor(self.torch, each) for name, each in held},
            "random": self.drawn or self._randomness(),
            **self.averages.taken(),
        }

    def _aspects(self, optimizer: Handed) -> dict[str, dict[str, int]]:
        torch = self.torch
        parameters: dict[int, Handed] = {}
        names: dict[int, str] = {}
        for name, each in self.named():
            parameters.setdefault(id(each), each)
            names.setdefault(id(each), name)
        for at, group in enumerate(optimizer.param_groups):
            for number, each in enumerate(group["params"]):
                parameters.setdefault(id(each), each)
                names.setdefault(id(each), f"{type(optimizer).__name__} {at}.{number}")
        state = dict(_state(torch, optimizer, names))
        found = {
            "parameters": {names[key]: of_tensor(torch, each) for key, each in parameters.items()},
            "state": {name: _value(torch, each) for name, each in state.items()},
            **self._around(),
        }
        if self.done == self.orders["whole"]:
            held = {names[key]: each for key, each in parameters.items()}
            found["whole"] = {name: of_tensor(torch, each, whole=True) for name, each in held.items()}
            found["whole_state"] = {name: _value(torch, each, whole=True) for name, each in state.items()}
        return found


def _state(torch: Handed, optimizer: Handed, names: dict[int, str]) -> list[tuple[str, Handed]]:
    return [
        (f"{names.get(id(parameter), '?')}: {key}", value)
        for group in optimizer.param_groups
        for parameter in group["params"]
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor | int | float)
    ]


def _value(torch: Handed, value: Handed, whole: bool = False) -> int:
    if not isinstance(value, torch.Tensor) or (value.numel() == 1 and not hasattr(value, "full_tensor")):
        return of_bytes(repr(float(value)).encode())  # a count may come back as a number or as a tensor
    return of_tensor(torch, value, whole)


def _rates(optimizer: Handed) -> list[tuple[str, float]]:
    found = []
    for number, group in enumerate(optimizer.param_groups):
        for name in ("lr", "weight_decay", "momentum", "betas"):
            value = group.get(name)
            for each in value if isinstance(value, tuple) else (value,):
                if each is not None:
                    found.append((f"{name} of group {number}" if number else name, float(each)))
    return found
