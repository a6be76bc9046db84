"""How long loaders are, and what they read from: one process that plays a rank's tape is told what the rank was.

What shares data out among ranks has another length in one process. A loss that is divided by it, or a step that comes
with the last batch, would be another there, though nothing is wrong. An answer belongs to an object: the k-th loader
that is made, its samplers and its data set.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING

from ..patching import Handed, Original, patch

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from ..session import Session
    from .begin import Part
    from .tape import Recorded

Key = tuple[str, int]
"""What of which loader."""
_OF_BATCHES = ("loader", "batch_sampler")
"""Count batches, of which the joined ones are as many; others count samples."""
_SHARE = ("num_replicas", "rank", "num_samples", "total_size")
_HEAP_TYPE = 1 << 9
"""The flag of classes that can be changed."""


class Lengths:
    """answers: by what was asked, all of them in order. shares: of each DistributedSampler, in order, its numbers."""

    def __init__(self, session: Session, part: Part, playing: list[Recorded]) -> None:
        self.torch, self.part, self.playing = session.torch, part, playing
        self.answers: dict[Key, list[int]] = {}
        self.shares: list[dict[str, int]] = []
        self.known: dict[int, tuple[weakref.ref[object], Key]] = {}
        self.followed: set[type] = set()
        session.loaders.met.append(self._met)
        patch(self.torch.utils.data.distributed.DistributedSampler, "__init__", self._sampler)

    def _met(self, number: int, loader: DataLoader) -> None:
        """A loader that has just been made."""
        parts = {"loader": loader}
        parts |= {kind: getattr(loader, kind, None) for kind in ("batch_sampler", "sampler", "dataset")}
        for kind, thing in parts.items():
            holder = next((each for each in type(thing).__mro__ if "__len__" in vars(each)), object)
            known = self._key(thing) is not None
            if known or not holder.__flags__ & _HEAP_TYPE or isinstance(thing, self.torch.Tensor):
                continue
            with contextlib.suppress(TypeError):  # of what cannot be referred to weakly
                self.known[id(thing)] = weakref.ref(thing), (kind, number)
            if holder not in self.followed:
                self.followed.add(holder)
                patch(holder, "__len__", self._asked)
            with contextlib.suppress(Exception):  # it may have none, or not yet
                len(thing)

    def _key(self, thing: object) -> Key | None:
        held = self.known.get(id(thing))
        return held[1] if held is not None and held[0]() is thing else None

    def _asked(self, original: Original) -> Original:
        def length(thing: object) -> object:
            key = self._key(thing)
            own = original(thing)
            return own if key is None else self._answer(key, own)

        return length

    def _answer(self, key: Key, own: int) -> int:
        told = self.answers.setdefault(key, [])
        told.append(own)
        theirs = [each["lengths"].get(key) or [own] for each in self.playing]
        if not theirs:
            return own
        now = [each[min(len(told), len(each)) - 1] for each in theirs]
        return now[0] if key[0] in _OF_BATCHES or set(now) == {own} else sum(now)

    def _sampler(self, original: Original) -> Original:
        """Its numbers can be asked of it too, and it draws by them; what is joined is all there is."""

        def init(sampler: Handed, *args: object, **kwargs: object) -> None:
            original(sampler, *args, **kwargs)
            count = len(self.shares)
            self.shares.append({name: getattr(sampler, name) for name in _SHARE})
            if self.part["role"] in ("one", "again") and count < len(self.playing[0]["shares"]):
                sampler.__dict__.update(self.playing[0]["shares"][count])

        return init
