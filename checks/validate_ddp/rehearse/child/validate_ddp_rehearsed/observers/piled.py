"""Gradients of parameters that no optimizer of this rank holds: whether they pile up over steps, and are sent.

Whoever divides an optimizer's work among the ranks has to clear the gradients of all parameters, not of its own alone:
what is left of the last step is a part of the next sum. That a step has come shows in the parameter: another rank has
moved it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Kwargs, guarded

if TYPE_CHECKING:
    from torch import Tensor

    from ..session import Session

_BACKWARDS, _STEPS = 16, 2
"""Backwards that are looked at, and steps over which a gradient has to have piled up."""


def install(session: Session) -> None:
    """Local. Event ``piled``."""
    if not session.torch.distributed.is_available():
        return
    observer = _Piled(session)
    session.before_backward.append(lambda root: guarded(session.fault, "piled", observer.before))
    session.after_backward.append(lambda: guarded(session.fault, "piled", observer.after))
    session.calls.listeners.append(observer.sends)


class _Left:
    """A parameter that no optimizer of this rank holds. digest: of it, at the last backward. left: of the gradient that
    a backward finds. steps: over how many it has piled up."""

    def __init__(self, parameter: Tensor, model: int, place: int) -> None:
        self.parameter = weakref.ref(parameter)
        self.model, self.place, self.steps = model, place, 0
        self.digest: int | None = None
        self.left: int | None = None


class _Piled:
    """The gradients of this process."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.backwards = 0
        self.known: dict[int, _Left] = {}
        """By id of the parameter."""
        self.sending: dict[int, _Left] = {}
        """By address of the gradient: those that have piled up."""
        self.sent: dict[int, set[int]] = {}
        """By model, the places of those that were sent."""
        self.site: protocol.Site | None = None

    def before(self) -> None:
        """Before a backward. What it finds is left of another step where the parameter has been moved since."""
        self.sending.clear()
        if self.sent and self.site is not None:
            self._tell(self.site)
        if self.backwards >= _BACKWARDS:
            return
        self.backwards += 1
        found = list(self._unheld())
        parameters = [parameter for parameter, _, _ in found]
        now, grads = self.session.digests(parameters), self.session.digests([each.grad for each in parameters])
        for (parameter, model, place), digest, grad in zip(found, now, grads, strict=True):
            known = self.known.get(id(parameter))
            if known is None or known.parameter() is not parameter:
                known = self.known[id(parameter)] = _Left(parameter, model, place)
            moved = None not in (known.digest, digest) and known.digest != digest
            known.steps = known.steps if grad else 0
            known.left = grad if grad and moved else None
            known.digest = digest

    def after(self) -> None:
        """After a backward: whether it has added to what it found."""
        held = [(known, parameter) for known in self.known.values() if (parameter := known.parameter()) is not None]
        held = [(known, parameter) for known, parameter in held if parameter.grad is not None]
        piling = [(known, parameter) for known, parameter in held if known.left is not None]
        grads = self.session.digests([parameter.grad for _, parameter in piling])
        for (known, _), grad in zip(piling, grads, strict=True):
            known.steps += grad is not None and grad != known.left
            known.left = None
        for known, parameter in held:
            if known.steps >= _STEPS and parameter.grad is not None:
                self.sending[parameter.grad.data_ptr()] = known

    def sends(self, name: str, values: Kwargs) -> None:
        """After a collective."""
        if not self.sending or name not in ("all_reduce", "reduce"):
            return
        known = self.sending.get(getattr(values.get("tensor"), "data_ptr", int)())
        if known is not None:
            self.site = self.site or self.session.here()
            self.sent.setdefault(known.model, set()).add(known.place)

    def _tell(self, site: protocol.Site) -> None:
        """Once, of all; with what this rank holds of the same models."""
        moving = self.session.moving()
        for reference, told in self.session.models.values():
            module, places = reference(), self.sent.get(told.model)
            if module is not None and places:
                held = [at for at, each in enumerate(module.parameters()) if id(each) in moving]
                self.session.emit(protocol.Piled(model=told.model, places=sorted(places), held=held, site=site))
        self.sent.clear()
        self.known.clear()
        self.backwards = _BACKWARDS

    def _unheld(self) -> Iterator[tuple[Tensor, int, int]]:
        moving = self.session.moving()
        for reference, told in list(self.session.models.values()):
            module = reference()
            for place, each in enumerate(module.parameters() if module is not None else ()):
                if each.requires_grad and id(each) not in moving:
                    yield each, told.model, place
