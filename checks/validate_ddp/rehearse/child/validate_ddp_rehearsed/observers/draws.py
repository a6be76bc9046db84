"""Random draws while training, and seeding: ranks that draw the same noise learn from it once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Handed, Kwargs, around, everywhere

if TYPE_CHECKING:
    from ..session import Session

_FUNCTIONS = "rand randn rand_like randn_like randint randint_like normal bernoulli multinomial randperm".split()
_METHODS = "normal_ uniform_ bernoulli_ random_ exponential_".split()
_OCCURRENCES, _LIMIT = 3, 20_000


def install(session: Session) -> None:
    """Local. Events ``seed`` and ``draw``."""
    torch = session.torch
    observer = _Draws(session)
    around(torch, "manual_seed", session.fault, observer.seeding)
    everywhere({id(torch.manual_seed.__wrapped__): torch.manual_seed})
    for name in _FUNCTIONS:
        observer.watch(torch, name)
    for name in _METHODS:
        observer.watch(torch.Tensor, name)


class _Draws:
    """Draws from the default generator, a few of each place."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.counts: dict[tuple[str, protocol.Site], int] = {}
        self.seen = 0

    def seeding(self, args: Args, kwargs: Kwargs) -> None:
        if not self.session.sites.called_by_torch():
            self.session.emit(
                protocol.Seed(value=str(args[0] if args else kwargs.get("seed")), site=self.session.here())
            )

    def watch(self, owner: object, name: str) -> None:
        def after(drawing: protocol.Site | None, result: object) -> None:
            if drawing is not None:
                self.drawn(name, drawing, result)

        around(owner, name, self.session.fault, self.before, after)

    def before(self, args: Args, kwargs: Kwargs) -> protocol.Site | None:
        if not self.session.training or self.seen > _LIMIT or kwargs.get("generator") is not None:
            return None
        if not self.session.torch.is_grad_enabled() or self.session.sites.called_by_torch():
            return None
        self.seen += 1
        here: protocol.Site = self.session.here()
        return here

    def drawn(self, name: str, site: protocol.Site, result: Handed) -> None:
        if not hasattr(result, "numel") or result.numel() < 2:
            return  # a coin that all ranks must toss alike
        count = self.counts[name, site] = self.counts.get((name, site), 0) + 1
        if count <= _OCCURRENCES:
            some = result.detach().reshape(-1)[:64].double()
            digest = hash(tuple(some.tolist()))
            self.session.emit(protocol.Draw(function=name, count=count, digest=digest, numel=result.numel(), site=site))
