"""Data: loaders and samplers, the indices of each batch that is consumed, what is in its rows, and ``--max-steps``."""

from __future__ import annotations

import sys
import zlib
from collections import deque
from typing import TYPE_CHECKING

from .. import protocol
from ..callers import takes_by_hand
from ..hook import when_complete
from ..patching import Args, Kwargs, Numbering, Original, around, guarded, patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Sized
    from types import CodeType, FrameType

    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset, Sampler, Subset
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from ..session import Session

_ROWS_OF_ITERATIONS, _ROWS_OF_BATCHES, _SAMPLED = 2, 32, 64
"""Contents are compared for the first iterations and batches of a loader, by so many elements of each row."""
_STATE = {
    "seed": ("seed", "initial_seed", "data_seed"), "epoch": ("epoch",), "replicas": ("num_replicas", "num_processes"),
    "rank": ("rank", "process_index"), "shuffle": ("shuffle",), "drop_last": ("drop_last",),
    "replacement": ("replacement",), "drawn": ("num_samples", "_num_samples"),
}  # fmt: skip
"""What of a sampler decides who reads what, by its name here: the attributes of torch's and of Accelerate's."""
_LEVELS = 5


def install(session: Session) -> None:
    """Local. Events ``loader``, ``sampler``, ``set_epoch``, ``split``, ``iteration``, ``batch`` and ``iterated``."""
    data = session.torch.utils.data
    observer = session.loaders = Loaders(session)
    observer.follow(data.DataLoader)
    when_complete(
        "torchdata.stateful_dataloader.stateful_dataloader",  # which has methods of its own in place of these
        lambda module: guarded(session.fault, "loaders", observer.follow, module.StatefulDataLoader),
    )
    around(
        data.distributed.DistributedSampler, "__init__", session.fault, lambda args, kwargs: args[0],
        lambda sampler, result: observer.sampler(sampler),
    )  # fmt: skip
    around(data.distributed.DistributedSampler, "set_epoch", session.fault, observer.set_epoch)
    iterator = data.dataloader._BaseDataLoaderIter
    around(iterator, "_next_index", session.fault, lambda args, kwargs: args[0], observer.drawn)
    patch(iterator, "__next__", observer.next_batch)
    for module in (data, data.dataset):
        around(module, "random_split", session.fault, lambda args, kwargs: None, observer.split)


class Loaders:
    """The loaders of this process."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.torch = session.torch
        self.loaders = Numbering()
        self.samplers = Numbering()
        self.iterations: dict[int, int] = {}
        self.by_hand: dict[tuple[CodeType, int], bool] = {}
        """By the line that asks for a batch."""
        self.watching: list[Callable[[int, int, list[int] | None, object], None]] = []
        """Called with each batch: its loader, turn and indices (of a subset, in what it is part of) before it."""
        self.met: list[Callable[[int, DataLoader], None]] = []
        """Called with each loader that is made, and its number."""
        self.limit = session.options.get("max_steps") or 0

    def follow(self, kind: type[DataLoader]) -> None:
        """From now on all loaders of a class."""
        around(kind, "__init__", self.session.fault, lambda args, kwargs: args[0], lambda loader, _: self.made(loader))
        around(kind, "__iter__", self.session.fault, self.beginning, self.began)

    def made(self, loader: DataLoader) -> None:
        sampler = loader.sampler
        inner = getattr(loader.batch_sampler, "sampler", None)
        known = [self.samplers.get(each) for each in (sampler, inner, loader.batch_sampler) if each is not None]
        part, whole = self.part(loader.dataset)
        told = protocol.Loader(
            loader=self.loaders.of(loader), site=self.session.here(), length=_length(loader.dataset),
            batches=_length(loader), batch_size=loader.batch_size, sampler=type(sampler).__name__,
            numbered=next((each for each in known if each is not None), None),
            iterable=isinstance(loader.dataset, self.torch.utils.data.IterableDataset),
            drop_last=bool(loader.drop_last), workers=loader.num_workers, dataset=type(loader.dataset).__name__,
            part=part, whole=whole, persistent=bool(getattr(loader, "persistent_workers", False)),
        )  # fmt: skip
        self.session.emit(told)
        for meet in self.met:
            meet(told.loader, loader)

    def part(self, dataset: Dataset) -> tuple[int | None, int | None]:
        """Of a subset: which one it is, and of how many samples; ranks may have one each."""
        if not isinstance(dataset, self.torch.utils.data.Subset):
            return None, None
        return zlib.crc32(repr(list(dataset.indices)).encode()), _length(dataset.dataset)

    def sampler(self, sampler: Sampler) -> None:
        told = protocol.Sampler(
            sampler=self.samplers.of(sampler), site=self.session.here(), shuffle=bool(sampler.shuffle),
            replicas=sampler.num_replicas, rank=sampler.rank, length=_length(sampler.dataset),
            drop_last=bool(sampler.drop_last),
        )  # fmt: skip
        self.session.emit(told)

    def set_epoch(self, args: Args, kwargs: Kwargs) -> None:
        epoch = args[1] if len(args) > 1 else kwargs.get("epoch")
        number = self.samplers.get(args[0])
        self.session.emit(protocol.SetEpoch(sampler=number, epoch=epoch if isinstance(epoch, int) else None))

    def split(self, token: None, parts: Sequence[Subset]) -> None:
        digests = [zlib.crc32(repr(list(part.indices)).encode()) for part in parts]
        lengths = [len(part) for part in parts]
        self.session.emit(protocol.Split(digests=digests, lengths=lengths, site=self.session.here()))

    def beginning(self, args: Args, kwargs: Kwargs) -> DataLoader:
        kept = getattr(args[0], "_iterator", None)  # of workers that persist
        if kept is not None:
            kept.drawn_indices = deque()
        return args[0]

    def began(self, loader: DataLoader, iterator: _BaseDataLoaderIter) -> None:
        number = self.loaders.of(loader)
        turn = self.iterations[number] = self.iterations.get(number, -1) + 1
        if isinstance(iterator, self.torch.utils.data.dataloader._BaseDataLoaderIter):
            iterator.rehearsed = [number, turn, 0]
        samplers = guarded(self.session.fault, "loaders", self.levels, loader) or []
        epoch = getattr(loader.dataset, "__dict__", {}).get("epoch")
        told = protocol.Iteration(loader=number, turn=turn, site=self.session.here(), samplers=samplers)
        told.epoch = epoch if type(epoch) is int else None
        self.session.emit(told)

    def levels(self, loader: DataLoader) -> list[protocol.Sampling]:
        """The samplers of a loader, the outermost first, each with what it is set to now. known: whether the class is
        torch's or Accelerate's own, so that what it does with these is known too."""
        found: list[protocol.Sampling] = []
        level = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        while level is not None and len(found) < _LEVELS:
            held = getattr(level, "__dict__", {})  # no properties: they may be the script's code
            entry = protocol.Sampling(
                kind=type(level).__name__,
                known=type(level).__module__.partition(".")[0] in ("torch", "accelerate"),
            )
            for name, attributes in _STATE.items():
                value = next((held[each] for each in attributes if held.get(each) is not None), None)
                if isinstance(value, int):
                    setattr(entry, name, value)
            found.append(entry)
            level = next((held[each] for each in ("batch_sampler", "sampler") if held.get(each) is not None), None)
        return found

    def drawn(self, iterator: _BaseDataLoaderIter, indices: object) -> None:
        # Workers are given their first indices while the iterator is still being made.
        iterator.__dict__.setdefault("drawn_indices", deque()).append(indices)

    def next_batch(self, original: Original) -> Original:
        def following(iterator: _BaseDataLoaderIter) -> object:
            state = iterator.__dict__.get("rehearsed")
            if state is not None and self.limit and state[2] >= self.limit and len(state) < 4:
                guarded(self.session.fault, "loaders", self._looked_at, state, sys._getframe(1))
                if len(state) < 4:
                    guarded(self.session.fault, "loaders", self._ended, state, False)
                    raise StopIteration
            try:
                batch = original(iterator)
            except StopIteration:
                guarded(self.session.fault, "loaders", self._ended, state, True)
                raise
            guarded(self.session.fault, "loaders", self._consumed, iterator, state, batch)
            return batch

        return following

    def _looked_at(self, state: list[int], frame: FrameType) -> None:
        """A loop that takes its batches by ``next`` and counts them itself would fail where one ends early. It is known
        where the loader would end: the first batch may have been one that was only looked at."""
        code = frame.f_code, frame.f_lineno
        if code not in self.by_hand:
            self.by_hand[code] = takes_by_hand(frame)
        if self.by_hand[code] and len(state) < 4:
            state.append(1)
            own = self.session.here().own
            self.session.note(
                f"--max-steps does not end the loop at {own.path}:{own.line}, which takes its batches by `next` and "
                "counts them itself: --stop-after N ends the run", at_once=True,
            )  # fmt: skip

    def _ended(self, state: list[int] | None, exhausted: bool) -> None:
        self.session.training = False
        if state is not None:
            self.session.emit(protocol.Iterated(loader=state[0], turn=state[1], batches=state[2], exhausted=exhausted))

    def _consumed(self, iterator: _BaseDataLoaderIter, state: list[int] | None, batch: object) -> None:
        self.session.training = self.torch.is_grad_enabled()
        if state is None:
            return
        drawn = iterator.__dict__.get("drawn_indices")
        asked = drawn.popleft() if drawn else None
        indices = self.indices(iterator, asked)
        told = protocol.Batch(
            loader=state[0], turn=state[1], count=state[2], indices=indices,
            size=len(indices) if indices and iterator._auto_collation else _size(batch, asked),
            site=self.session.here(),
        )  # fmt: skip
        if state[1] < _ROWS_OF_ITERATIONS and state[2] < _ROWS_OF_BATCHES:
            told.rows = self.rows(batch)
        dataset = iterator._dataset
        if indices and isinstance(dataset, self.torch.utils.data.Subset):
            if state[1] < _ROWS_OF_ITERATIONS or self.watching:
                indices = [int(dataset.indices[each]) for each in indices]
            if state[1] < _ROWS_OF_ITERATIONS:
                told.whole = indices
        self.session.emit(told)
        state[2] += 1
        for watch in self.watching:
            watch(state[0], state[1], indices, batch)

    def indices(self, iterator: _BaseDataLoaderIter, drawn: object) -> list[int] | None:
        """What was drawn, as numbers. Without batching of the loader's own it can be anything that its data set takes
        for a whole batch."""
        if not iterator._auto_collation and isinstance(drawn, (list, tuple)):
            return list(drawn) if all(type(each) is int for each in drawn) else None
        tensors = [each for each in drawn if hasattr(each, "tolist")] if isinstance(drawn, tuple) else []
        listed = tensors[0].tolist() if len(tensors) == 1 else None
        if isinstance(listed, list) and listed and all(type(each) is int for each in listed):
            return listed  # of a sampler that draws whole batches, each with other numbers beside it
        return _plain(drawn)

    def rows(self, batch: object) -> list[list[int]]:
        """For each tensor of a batch a digest of each row, from some of its elements."""
        digests = []
        for tensor in _tensors(batch):
            if tensor.dim() == 0 or tensor.is_sparse or not tensor.shape[0] or not tensor.numel():
                continue
            flat = tensor.detach().reshape(tensor.shape[0], -1)
            stride = max(1, flat.shape[1] // _SAMPLED)
            some = flat[:, ::stride].to(self.torch.float64)
            weights = self.torch.linspace(1, 2, some.shape[1], dtype=self.torch.float64)
            digests.append([hash(value) for value in (some * weights).sum(1).tolist()])
            if len(digests) == 4:
                break
        return digests


def _tensors(batch: object) -> Iterator[Tensor]:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for each in batch:
            yield from _tensors(each)
    elif hasattr(batch, "is_sparse"):
        yield batch


def _size(batch: object, asked: object) -> int | None:
    """The samples of a batch: as many as were asked for, where something of it is as long, else its first tensor's."""
    rows = [int(tensor.shape[0]) for tensor in _tensors(batch) if tensor.dim()]
    held = list(batch.values()) if isinstance(batch, dict) else batch
    lists = [len(each) for each in held if isinstance(each, list)] if isinstance(held, (list, tuple)) else []
    many = len(asked) if isinstance(asked, (list, tuple)) else None
    return many if many in (*rows, *lists) else rows[0] if rows else None


def _plain(indices: object) -> list[int] | None:
    """The indices of one batch as numbers; nested ones flattened, others by a checksum of how they are written."""
    if isinstance(indices, int):
        return [indices]
    if not isinstance(indices, (list, tuple)):
        return None if indices is None else [zlib.crc32(repr(indices).encode())]
    found: list[int] = []
    for each in indices:
        if type(each) is int:
            found.append(each)
        elif each is None:
            return None  # of an iterable dataset
        else:
            found += _plain(each) or []
    return found


def _length(thing: Sized) -> int | None:
    try:
        return len(thing)
    except TypeError:
        return None
