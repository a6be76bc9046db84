"""The steps of optimizers: gradients are taken at the last moment before parameters change, and each step is undone.

A step of the script's own may reduce or divide gradients before it hands them to a step of torch's: the latter is the
moment. Where there is none, what such a step does to the parameters is kept too: it tells what becomes of a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..patching import Args, Handed, Kwargs, Original, patch
from .tape import end, summary

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from .begin import Part
    from .models import Models

_STEPS = 8
"""Steps of one optimizer after which others are no longer waited for: those of a critic may come more often."""
_TORCH = ("torch.optim.", "torch.distributed.optim.")
"""Whose steps change parameters by the gradients that they are given."""


class Taken:
    """What is known of the first step of an optimizer. names: of its parameters; unnamed: how many are of no model.
    gradients: before a clipping that came before. changes: by how much a step of the script's own has changed
    parameters, in sums; updates: all of it, where it draws no random numbers. settings: of its groups, as the rate."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.names: set[str] = set()
        self.unnamed = 0
        self.gradients: dict[str, Tensor | None] = {}
        self.changes: dict[str, Handed] = {}
        self.updates: dict[str, Tensor] = {}
        self.settings = [
            {name: value for name, value in group.items() if isinstance(value, (bool, int, float, str))}
            for group in optimizer.param_groups
        ]
        self.found = False
        self.seen: dict[str, Tensor | None] = {}
        """Gradients as they were found last."""
        self.clipped: set[str] = set()
        self.own: set[str] = set()
        """Those to which no step of torch's has come."""
        self.values: dict[str, Tensor] = {}
        """Of parameters before the step, where it is of the script's own."""


class Steps:
    """clipped: gradients before a clipping, by name. begun: is called before the first look at gradients; done: is
    handed what was taken; ended: is called where others are no longer waited for."""

    def __init__(
        self, part: Part, models: Models, clipped: dict[str, Tensor | None], begun: Callable[[], None],
        done: Callable[[Taken], None], ended: Callable[[], None],
    ) -> None:  # fmt: skip
        self.part, self.models, self.clipped = part, models, clipped
        self.begun, self.done, self.ended = begun, done, ended
        self.torch = models.torch
        self.followed: set[type] = set()
        self.counts: dict[int, int] = {}
        self.within: list[tuple[Optimizer, bool]] = []
        """Steps that have begun, each within the one before, and whether they are torch's."""
        self.taken: Taken | None = None
        """Until it is done."""

    def follow(self, kind: type) -> None:
        """From now on the steps of a class of optimizers, and of those that it is made from. Their hooks come first."""
        for each in kind.__mro__:
            if each not in self.followed and "step" in vars(each):
                patch(each, "step", partial(self._step, f"{each.__module__}.".startswith(_TORCH)))
            self.followed.add(each)

    def _step(self, of_torch: bool, original: Original) -> Original:
        def step(optimizer: Optimizer, *args: object, **kwargs: object) -> object:
            self.within.append((optimizer, of_torch))
            try:
                if len(self.within) > 1:
                    if _closure(args, kwargs) is None:
                        self._take()
                    return original(optimizer, *args, **kwargs)
                args, kwargs = self._first(optimizer, args, kwargs)
                before = [(each, each.detach().clone()) for each in held(optimizer)]
                state = self.torch.get_rng_state()
                result = original(optimizer, *args, **kwargs)
                self._stepped(not self.torch.equal(state, self.torch.get_rng_state()))
                with self.torch.no_grad():
                    for parameter, value in before:
                        parameter.copy_(value)
                return result
            finally:
                self.within.pop()

        return step

    def _first(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """A step that no other encloses begins; gives its arguments. After the first call of a closure there are
        gradients."""
        count = self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        if count > _STEPS:
            self.ended()
        if count > 1:
            return args, kwargs
        self.taken = Taken(optimizer)
        closure = _closure(args, kwargs)
        if closure is None:
            self._take()
            return args, kwargs

        def called() -> object:
            result = closure()
            self._take()
            return result

        return ((called, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": called})

    def _take(self) -> None:
        """Gradients of the parameters of the innermost step, as they are now; those of before a clipping, where one
        came before."""
        taken = self.taken
        if taken is None:
            return
        optimizer, of_torch = self.within[-1]
        names = self._names(optimizer)
        if not taken.found:
            self.begun()
            taken.names = self._names(taken.optimizer)
            taken.unnamed = sum(id(each) not in self.models.names for each in held(taken.optimizer))
            taken.own, taken.found = set(taken.names), True
            if not of_torch:
                taken.values = self.models.values(taken.names.__contains__)
            wanted = taken.names
        else:
            wanted = names & taken.names
        for name, grad in self.models.gradients(wanted.__contains__).items() if wanted else ():
            if name in self.clipped:
                taken.gradients[name] = self.clipped.pop(name)
                taken.clipped.add(name)
            elif name not in taken.clipped:
                taken.gradients[name] = grad
            elif not self._same(taken.seen[name], grad):
                end(self.part, "an optimizer changes gradients in its step that were clipped before it")
            taken.seen[name] = grad
        if of_torch:
            taken.own -= names
        if not taken.own:
            self._done(taken)

    def _names(self, optimizer: Optimizer) -> set[str]:
        self.models.renew()
        return {self.models.names[id(each)] for each in held(optimizer) if id(each) in self.models.names}

    def _same(self, one: Tensor | None, other: Tensor | None) -> bool:
        return one is other or (one is not None and other is not None and self.torch.equal(one, other))

    def _stepped(self, drew: bool) -> None:
        """An outermost step has changed the parameters; ``drew`` where it has drawn random numbers."""
        taken = self.taken
        if taken is None:
            return
        if taken.values:
            after = self.models.values(taken.own.__contains__)
            changes = {name: after[name] - taken.values[name] for name in sorted(taken.own)}
            taken.changes = {name: summary(each) for name, each in changes.items()}
            taken.updates = {} if drew else changes
        self._done(taken)

    def _done(self, taken: Taken) -> None:
        self.taken = None
        if taken.found:  # else its closure was never called
            self.done(taken)


def held(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of an optimizer."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def _closure(args: Args, kwargs: Kwargs) -> Callable[[], object] | None:
    given = args[0] if args else kwargs.get("closure")
    return given if callable(given) else None
