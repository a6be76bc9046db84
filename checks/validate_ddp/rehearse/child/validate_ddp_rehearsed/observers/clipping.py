"""Clipping: of what is still scaled, what its norm is, and whether a later backward adds to what was clipped."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Handed, Kwargs, Original, around, everywhere, guarded, one_number, patch

if TYPE_CHECKING:
    from torch import Tensor

    from ..session import Session

_WATCHED = 4
"""Parameters of a clipping that are looked at."""


def install(session: Session) -> None:
    """Local. Events ``clip``, ``grown`` and ``unscale``."""
    observer = _Clipping(session)
    scaler = session.torch.amp.GradScaler
    around(scaler, "scale", session.fault, observer.scaled)
    around(scaler, "unscale_", session.fault, observer.unscaled)
    around(scaler, "update", session.fault, lambda args, kwargs: observer.pending.discard(id(args[0])))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        original = getattr(session.torch.nn.utils, name)
        everywhere({id(original): patch(session.torch.nn.utils, name, observer.clips)})
    session.before_backward.append(lambda root: guarded(session.fault, "clipping", observer.unchanged))
    session.after_backward.append(lambda: guarded(session.fault, "clipping", observer.grown))
    module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name
    module.register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: observer.watched.clear())


class _Clipping:
    """Of this process."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pending: set[int] = set()
        """Scalers of which gradients are multiplied."""
        self.watched: list[tuple[weakref.ref[Tensor], Handed]] = []
        """Parameters that were clipped, with what tells their gradients apart from others."""
        self.site: protocol.Site | None = None
        self.told: set[tuple[str, int]] = set()

    def scaled(self, args: Args, kwargs: Kwargs) -> None:
        if args[0].is_enabled():
            self.pending.add(id(args[0]))

    def unscaled(self, args: Args, kwargs: Kwargs) -> None:
        self.pending.discard(id(args[0]))
        self.session.emit(protocol.Unscale(site=self.session.here()))

    def clips(self, original: Original) -> Original:
        """Parameters often come as an iterator, which is read once."""

        def clip(*args: object, **kwargs: object) -> object:
            site = guarded(self.session.fault, "clipping", self.session.here)
            args = tuple(list(each) if isinstance(each, Iterator) else each for each in args)
            kwargs = {name: list(each) if isinstance(each, Iterator) else each for name, each in kwargs.items()}
            norm = original(*args, **kwargs)
            held = args[0] if args else kwargs.get("parameters")
            guarded(self.session.fault, "clipping", self.clipped, held, norm, site)
            return norm

        return clip

    def clipped(self, held: object, norm: object, site: protocol.Site | None) -> None:
        self.site = site or self.session.here()
        self.session.emit(protocol.Clip(scaled=bool(self.pending), site=self.site, norm=one_number(norm)))
        parameters = held if isinstance(held, (list, tuple)) else [held]
        having = [each for each in parameters if getattr(each, "grad", None) is not None]
        self.watched = [(weakref.ref(each), _state(each)) for each in having[-_WATCHED:]]

    def unchanged(self) -> None:
        """Before a backward: what was set to zero or written to since is no gradient that was clipped."""
        if self.watched and not all(_is(held(), state) for held, state in self.watched):
            self.watched = []

    def grown(self) -> None:
        """After a backward."""
        if self.site is None or not self.watched or all(_is(held(), state) for held, state in self.watched):
            return
        self.watched = []
        if self.site.place not in self.told:
            self.told.add(self.site.place)
            self.session.emit(protocol.Grown(site=self.site))


def _state(parameter: Tensor) -> Handed:
    """Which gradient it has, and how often that was written."""
    grad = parameter.grad
    inner = getattr(grad, "_local_tensor", grad)
    return None if grad is None else (id(grad), getattr(inner, "_version", 0))


def _is(parameter: Tensor | None, state: Handed) -> bool:
    return parameter is not None and _state(parameter) == state
