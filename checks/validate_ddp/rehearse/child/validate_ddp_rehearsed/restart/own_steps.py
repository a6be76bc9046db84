"""Steps of a script that makes no optimizer of torch's: each is known by what it has changed, when something looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..patching import Handed
from .digests import of_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..session import Session


class OwnSteps:
    """Of one process."""

    def __init__(self, session: Session) -> None:
        self.session, self.torch = session, session.torch
        self.held: dict[str, tuple[Handed, int]] = {}
        """The parameters by name, and the digest of each before the step."""

    def begins(self, parameters: Iterator[tuple[str, Handed]]) -> None:
        """A model is called that is trained."""
        if self.session.optimizers.count:
            self.held.clear()
            return
        for name, each in parameters:
            if name not in self.held:
                self.held[name] = each, of_tensor(self.torch, each)

    def taken(self) -> dict[str, int]:
        """What the parameters were before a step; nothing where none was taken. Looked at once."""
        if self.session.optimizers.count:
            return {}
        if all(of_tensor(self.torch, each) == digest for each, digest in self.held.values()):
            return {}
        held, self.held = self.held, {}
        return {name: digest for name, (_, digest) in held.items()}
