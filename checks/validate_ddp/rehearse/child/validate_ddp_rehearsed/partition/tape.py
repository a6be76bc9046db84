"""The batches and seeds of a rank up to its first step: recorded on W ranks, and played to one process.

With each batch goes the state of the random generators after it, so that noise which the loop draws is the same again.
A batch is kept as bytes, at once: the script may change it in place.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import random
import sys
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn, TypedDict

from ..hook import when_complete
from ..patching import Args, Handed, Kwargs, Original, everywhere, patch
from .begin import RECORDING
from .lengths import Lengths
from .precision import widened

if TYPE_CHECKING:
    from types import ModuleType

    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from ..session import Session
    from .begin import Part

Key = tuple[int, int, int]
"""Number of the loader, which iteration over it, which batch."""


class Recorded(TypedDict):
    """What a rank leaves behind. batches: by key, None for the end of the iteration. seeds: by function, the arguments
    of its calls; by "met", the states of the random generators. inputs: of each training call of a model, shapes and
    sums. weights: by name. moments: by optimizer. averages: whether something averages models now and then, as local
    SGD does. exchanges: whether ranks hand each other what has a gradient; deals: whether each its own part of it, as
    tokens for experts, and nobody all of it; dealt: whether one process holds what lies on several ranks. acts: what
    those make of a tape that are all given one. times: as of ``constants``, of the first loss. lengths, shares: as of
    ``Lengths``. digest: of batches, random states and inputs. spread: on how many ranks a step's micro-batches are
    spread, which one process takes all by itself; 1 where each rank takes as many as it does."""

    batches: dict[Key, bytes | None]
    seeds: dict[str, list[object]]
    inputs: list[Handed]
    weights: dict[str, Handed]
    moments: list[Handed]
    averages: bool
    exchanges: bool
    deals: bool
    dealt: bool
    acts: dict[str, list[Handed]]
    times: list[float]
    lengths: dict[tuple[str, int], list[int]]
    shares: list[dict[str, int]]
    digest: str
    backwards: int
    spread: int


class CannotCompareError(Exception):
    """Why the check cannot be done on this script, in words."""


class Tape:
    """rank: whose it is. playing: what was recorded, by those who play it."""

    def __init__(self, session: Session, part: Part, rank: int) -> None:
        self.torch, self.part = session.torch, part
        self.batches: dict[Key, bytes | None] = {}
        self.seeds: dict[str, list[object]] = {}
        self.inputs: list[object] = []
        self.known = 0
        """Calls of the rank whose tape is played that this process has made too."""
        self.foreign = False
        """Whether a call since the last backward was none of the rank's."""
        self.counts: dict[str, int] = {}
        self.hash = hashlib.sha256()
        self.playing: list[Recorded] = []
        self.session = session
        if part["role"] not in RECORDING:
            several = {"union": range(part["size"]), "copies": [part["rank"]] * part["size"], "up": [rank]}
            whose = several.get(part["role"], [part["rank"]])
            self.playing = [load(self.torch, part["folder"], each, part["of"]) for each in whose]
        self.lengths = Lengths(session, part, self.playing)
        patch(self.torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", self._next)
        self._seeding()

    def digest(self) -> str:
        """Equal for ranks that have learned from the same."""
        return self.hash.hexdigest() + repr(self.inputs)

    def _next(self, original: Original) -> Original:
        def following(iterator: _BaseDataLoaderIter) -> object:
            key = self._key(iterator)
            if self.playing:
                return self._played(key)
            try:
                batch = original(iterator)
            except StopIteration:
                self.batches[key] = None
                raise
            batch = widened(self.torch, batch, self.part["float64"])
            held = io.BytesIO()
            self.torch.save((batch, self._randomness()), held)
            self.batches[key] = held.getvalue()
            self.hash.update(repr(key).encode() + held.getvalue())
            return batch

        return following

    def _key(self, iterator: _BaseDataLoaderIter) -> Key:
        known = iterator.__dict__.get("rehearsed") or [-1, 0, 0]
        count = iterator.__dict__["taped"] = iterator.__dict__.get("taped", -1) + 1
        return known[0], known[1], count

    def _played(self, key: Key) -> object:
        found = []
        for recorded in self.playing:
            batches = recorded["batches"]
            if key not in batches and len(self.playing) == 1 and len({each[:2] for each in batches}) == 1:
                key = *key[:2], key[2] % len(batches)  # a step's micro-batches may be spread on the ranks
            if key not in batches:
                taken = sum(each is not None for each in batches.values())
                end(self.part, f"one process takes more batches for its first step than a rank, which takes {taken}")
            held = batches[key]
            if held is None:
                raise StopIteration
            found.append(self.torch.load(io.BytesIO(held), weights_only=False))
        self._set_randomness(found[0][1])
        return found[0][0] if len(found) == 1 else self._joined([batch for batch, _ in found])

    def _joined(self, parts: list[Handed]) -> Handed:
        """The batches of all ranks as one."""
        first = parts[0]
        if isinstance(first, self.torch.Tensor):
            if not first.dim() or any(each.shape[1:] != first.shape[1:] for each in parts):
                end(self.part, "the batches of the ranks cannot be joined: their shapes differ")
            return self.torch.cat(parts)
        if isinstance(first, dict):
            return type(first)({key: self._joined([each[key] for each in parts]) for key in first})
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return type(first)(*(self._joined(list(each)) for each in zip(*parts, strict=True)))
        if isinstance(first, (list, tuple)):
            if first and isinstance(first[0], (str, int, float)):
                return type(first)([value for each in parts for value in each])
            return type(first)(self._joined(list(each)) for each in zip(*parts, strict=True))
        if any(each != first for each in parts):
            end(self.part, f"the batches of the ranks cannot be joined: they hold a {type(first).__name__}")
        return first

    def _randomness(self) -> tuple[object, ...]:
        numpy = sys.modules.get("numpy")
        state = numpy.random.get_state() if numpy is not None else None
        return self.torch.get_rng_state(), random.getstate(), state

    def _set_randomness(self, state: Handed) -> None:
        self.torch.set_rng_state(state[0])
        random.setstate(state[1])
        numpy = sys.modules.get("numpy")
        if numpy is not None and state[2] is not None:
            numpy.random.set_state(state[2])

    def meet(self) -> None:
        """A moment to which every process comes, when models are made: from here on random numbers are those of the
        rank again. Shards, and meshes, draw others than one process does."""
        count = self.counts["met"] = self.counts.get("met", -1) + 1
        if not self.playing:
            self.seeds.setdefault("met", []).append(self._randomness())
        elif count < len(self.playing[0]["seeds"].get("met", ())):
            self._set_randomness(self.playing[0]["seeds"]["met"][count])

    def _seeding(self) -> None:
        """The k-th seeding is that of the rank whose tape is played."""
        original = self.torch.manual_seed
        self._seeded(self.torch, "manual_seed", "torch")
        everywhere({id(original): self.torch.manual_seed})
        self._seeded(random, "seed", "random")
        self._generators()
        when_complete("numpy.random", self._numpy)

    def _numpy(self, module: ModuleType) -> None:
        self._seeded(module, "seed", "numpy")
        self._seeded(module, "default_rng", "numpy.default_rng")

    def _generators(self) -> None:
        """Generators of the script's own are seeded so too: what makes them is torch's, or the shim's."""
        former = self.torch.Generator
        seeding = self._same

        class Seeded(self.torch._C.Generator):  # type: ignore[misc,name-defined]
            def manual_seed(self, *args: object) -> object:
                args, _ = seeding("generator", args, {})
                return super().manual_seed(*args)

        class Generator(metaclass=type(former)):  # type: ignore[metaclass]
            def __new__(cls, device: object = "cpu") -> object:  # type: ignore[misc]
                return Seeded(device=former(device).device)

        vars(self.torch)["Generator"] = Generator

    def _same(self, kind: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """The arguments of a seeding: where a tape is played, those that its rank has given."""
        count = self.counts[kind] = self.counts.get(kind, -1) + 1
        if not self.playing:
            self.seeds.setdefault(kind, []).append((args, kwargs))
            return args, kwargs
        held: list[Handed] = self.playing[0]["seeds"].get(kind, [])
        return held[count] if count < len(held) else (args, kwargs)

    def _seeded(self, owner: object, name: str, kind: str) -> None:
        def make(original: Original) -> Original:
            def seed(*args: object, **kwargs: object) -> object:
                args, kwargs = self._same(kind, args, kwargs)
                return original(*args, **kwargs)

            return seed

        patch(owner, name, make)

    def saw(self, args: object) -> None:
        """The inputs of a training call of a model."""
        mine = [summary(each) for each in tensors_of(args, self.torch)]
        self.inputs.append(mine)
        self._matched(mine)

    def forgets(self, count: int) -> None:
        """The gradients of the first calls are thrown away: no step learns from them."""
        left = self.inputs[count:]
        del self.inputs[:]
        self.known, self.foreign = 0, False
        for each in left:
            self.inputs.append(each)
            self._matched(each)

    def _matched(self, mine: Handed) -> None:
        if len(self.playing) == 1:
            theirs = self.playing[0]["inputs"]
            known = self.known < len(theirs) and close(theirs[self.known], mine)
            self.known += known
            self.foreign = self.foreign or not known

    @property
    def spread(self) -> int:
        """On how many ranks the micro-batches of one step are spread, where this process has taken all of them."""
        theirs = [len(each["inputs"]) for each in self.playing]
        all_ranks = len(theirs) == 1 and len(self.inputs) == theirs[0] * self.part["size"] > theirs[0] == self.known
        return self.part["size"] if all_ranks else 1

    @cached_property
    def joined(self) -> bool:
        """Whether this process, which plays the tape of one rank, has been given what all ranks were, joined: a script
        without a loader takes its share of the global batch by the number of ranks."""
        firsts = sorted(set(self.part["tapes"]))
        if self.part["role"] not in ("one", "again") or len(firsts) < 2 or self.known:
            return False
        theirs = [load(self.torch, self.part["folder"], each, self.part["of"])["inputs"] for each in firsts]
        if any(len(each) != len(self.inputs) for each in theirs):
            return False
        return all(_joins(parts, whole) for *parts, whole in zip(*theirs, self.inputs, strict=True))

    def other_inputs(self) -> str:
        """Why what one process has learned from is not what the rank has; "" where it is."""
        theirs, mine = [each["inputs"] for each in self.playing], self.inputs
        if self.spread > 1:
            return ""
        if self.joined:
            return ""
        if any(len(each) != len(mine) for each in theirs):
            return (
                f"one process calls its models {len(mine)} times before the first step, a rank {len(theirs[0])} times"
            )
        if len(theirs) == 1:
            same = all(map(close, theirs[0], mine))
        else:
            same = all(_joins(parts, whole) for *parts, whole in zip(*theirs, mine, strict=True))
            if same and self.part["role"] == "copies" and all(map(close, theirs[0], mine)):
                return "there is no loader whose batches could be joined"
        return "" if same else "one process learns from other data than the rank: they depend on the number of ranks"


def path(folder: str, role: str, rank: int) -> str:
    """Where a process leaves what it has recorded."""
    return os.path.join(folder, f"{role}-{rank}.pt")


def load(torch: ModuleType, folder: str, rank: int, role: str = "ranks") -> Recorded:
    """What a process has left."""
    found: Recorded = torch.load(path(folder, role, rank), weights_only=False, mmap=True)
    return found


def end(part: Part, why: str) -> NoReturn:
    """The check cannot be done: says why, in a file, and ends this process."""
    with open(os.path.join(part["folder"], "why"), "a", encoding="utf-8") as file:
        file.write(why.replace("\n", " ") + "\n")
    os._exit(0)


def tensors_of(value: object, torch: ModuleType) -> list[Handed]:
    """All tensors of what is handed over."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_of(each, torch)]
    return []


def summary(tensor: Handed) -> Handed:
    """Shape and three sums, the last one over rows, and the same in any order; of a sharded tensor nothing, as ranks
    hold parts of it, nor of a gradient that is none."""
    if (
        tensor is None
        or hasattr(tensor, "full_tensor")
        or (tensor.layout != tensor.layout.__class__ and tensor.is_sparse)
    ):
        return None
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = flat.abs()
    flat = flat.double()
    weights = flat.new_ones(flat.shape).cumsum(0).mul_(0.7).sin_()
    rows = flat.reshape(tensor.shape[0], -1) if tensor.dim() and tensor.numel() else flat.reshape(1, -1)
    turned = (rows @ weights[: rows.shape[1]]).cos().sum()
    return list(tensor.shape), float(flat.abs().sum()), float((flat * weights).sum()), float(turned)


def close(one: Handed, other: Handed) -> bool:
    """Whether two calls were given the same."""
    return len(one) == len(other) and all(map(_near, one, other))


def _near(one: Handed, other: Handed) -> bool:
    if one is None or other is None:
        return one is other
    size = max(abs(one[1]), abs(other[1]))

    def alike(a: float, b: float) -> bool:
        return a == b or (math.isnan(a) and math.isnan(b)) or (math.isfinite(size) and abs(a - b) <= 1e-5 * size)

    return list(one[0]) == list(other[0]) and all(map(alike, one[1:3], other[1:3]))


def _joins(parts: list[Handed], whole: Handed) -> bool:
    """Whether a call was given what those of the ranks were, joined, or what all of them were given alike."""

    def one(tensors: list[Handed], joined: Handed) -> bool:
        if joined is None or None in tensors or all(_near(each, joined) for each in tensors):
            return joined is None or None not in tensors
        rows, size = sum(each[0][0] for each in tensors if each[0]), sum(each[1] for each in tensors)
        turned = sum(each[3] for each in tensors) - joined[3]
        alike = abs(size - joined[1]) <= 1e-5 * size and abs(turned) <= 1e-4 * rows
        return bool(joined[0] and rows == joined[0][0] and alike)

    counts = {len(each) for each in (*parts, whole)}
    return len(counts) == 1 and all(one(list(tensors), joined) for *tensors, joined in zip(*parts, whole, strict=True))
