"""What ranks read together of one data set: who was given which samples, and what their samplers were set to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, combinations
from math import prod
from typing import NamedTuple

from validate_ddp.record.iterations import (
    Rows,
    Turn,
    contents,
    loader_of,
    sampler_of,
    shared,
    training_turn,
    training_turns,
)
from validate_ddp.record.run import Run, Site, once
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

_PLAIN = {
    "BatchSampler", "SequentialSampler", "RandomSampler", "DistributedSampler", "BatchSamplerShard",
    "SeedableRandomSampler",
}  # fmt: skip
"""Samplers that go once through all of their data set. Others may weigh, choose or skip, which is their purpose."""
_SHUFFLING = {"RandomSampler", "SeedableRandomSampler"}
_TRAINED = 0.6
"""Share of the batches that lead to gradients; of fewer the script itself chooses which are a rank's own."""
_CHOICE = 4
"""Batches from which on it is said that a script chooses."""
_REREAD = 2
"""Samples that a rank has to have read twice, and alike, before it is said that its data does not change."""


Level = dict[int, protocol.Sampling]
"""What a sampler is set to, by rank."""


class Sharing(NamedTuple):
    """One iteration of all replicas over the loader of one line.

    loaders, turns, read: by rank; the last as indices in the data set that they share. length: samples of that. whole:
    whether every rank came to its end. own: whether each rank has a part of its own. site: of the sampler, of the
    loader where it has none of torch's.
    """

    loaders: dict[int, protocol.Loader]
    turns: dict[int, Turn]
    length: int
    read: dict[int, list[int]]
    whole: bool
    own: bool
    site: Site

    @property
    def ranks(self) -> list[int]:
        return list(self.turns)

    @property
    def counts(self) -> Counter[int]:
        """By index: how often it was read by all ranks together."""
        return Counter(chain.from_iterable(self.read.values()))

    @property
    def repeated(self) -> int:
        return sum(count > 1 for count in self.counts.values())

    @property
    def missed(self) -> int:
        return max(0, self.length - len(self.counts))

    @property
    def levels(self) -> list[Level]:
        """The samplers, the outermost first, each as what it was set to on each rank; none where ranks differ in
        kind."""
        told = [turn.samplers for turn in self.turns.values()]
        if any([each.kind for each in one] != [each.kind for each in told[0]] for one in told):
            return []
        return [dict(zip(self.turns, level, strict=True)) for level in zip(*told, strict=True)]

    @property
    def sharding(self) -> list[Level]:
        """Those of them that share the data out."""
        return [level for level in self.levels if any(each.shares > 1 for each in level.values())]

    @property
    def plain(self) -> bool:
        """Whether all of them are of torch or Accelerate and go once through everything."""
        return bool(self.levels) and all(
            each.known and each.kind in _PLAIN and not each.replacement and not _draws_less(each)
            for level in self.levels
            for each in level.values()
        )

    @property
    def padding(self) -> int:
        """Samples that may be repeated, so that ranks get as many: one for each rank, or a batch for each."""
        return sum(
            max(each.shares for each in level.values()) * (self._batch if _by_batches(level) else 1)
            for level in self.sharding
        )

    @property
    def dropped(self) -> int:
        """Samples that may be left out at the end of an epoch."""
        drops = any(each.drop_last for level in self.levels for each in level.values())
        drops = drops or any(loader.drop_last for loader in self.loaders.values())
        return len(self.ranks) * (self._batch + 1) if drops else len(self.ranks) - 1

    @property
    def _batch(self) -> int:
        return max((len(indices) for turn in self.turns.values() for indices in turn.indices), default=1)


def _draws_less(entry: protocol.Sampling) -> bool:
    return entry.kind == "RandomSampler" and entry.drawn is not None


def _by_batches(level: Level) -> bool:
    return any(each.kind == "BatchSamplerShard" for each in level.values())


def shuffles(entry: protocol.Sampling) -> bool:
    """Whether what a sampler gives depends on a seed."""
    return entry.kind in _SHUFFLING if entry.shuffle is None else bool(entry.shuffle)


@once
def sharings(run: Run) -> list[Sharing]:
    """The first iteration in which all replicas learn from a loader, for each loader of which indices are known; and
    the first in which their samplers are set otherwise."""
    return list(_found(run))


def _found(run: Run) -> Iterator[Sharing]:
    if len(run.replicas) < 2:
        return
    done: set[tuple[int, bool]] = set()
    for turn in training_turns(run, run.replicas[0]):
        peers = {rank: training_turn(run, rank, turn.loader, turn.number) for rank in run.replicas}
        found = {rank: peer for rank, peer in peers.items() if peer is not None}
        if len(found) < len(peers):
            continue
        alike = len({_set_to(peer) for peer in found.values()}) == 1
        if (turn.loader, alike) in done or (alike and (turn.loader, False) in done):
            continue
        sharing = sharing_of(run, found)
        if sharing is not None and len({loader.site.place for loader in sharing.loaders.values()}) == 1:
            done.add((turn.loader, alike))
            yield sharing


def _set_to(turn: Turn) -> tuple[object, ...]:
    return tuple((each.seed, each.epoch, each.replicas, each.shuffle) for each in turn.samplers)


def read_apart(run: Run) -> bool:
    """Whether ranks were seen to read samples of their own, but for padding."""
    return bool(sharings(run)) and all(each.repeated <= each.padding for each in sharings(run))


def sharing_of(run: Run, turns: dict[int, Turn]) -> Sharing | None:
    """Of these iterations, one for each rank; None where it is not known which samples they were."""
    loaders = {rank: loader_of(run, rank, turn.loader) for rank, turn in turns.items()}
    known = {rank: loader for rank, loader in loaders.items() if loader is not None and loader.length is not None}
    if not known or len(known) < len(turns) or any(loader.iterable for loader in known.values()):
        return None
    parts = len({loader.part for loader in known.values()}) > 1
    parts = parts and all(loader.whole for loader in known.values())
    used = {rank: chosen(turn) for rank, turn in turns.items()}
    read = {
        rank: [index for batch in turn.batches for index in (batch.event.whole if parts else batch.event.indices) or ()]
        for rank, turn in used.items()
    }
    if not any(read.values()) or (not parts and _of_other_shares(list(turns.values()), list(known.values()))):
        return None
    last = list(known.values())[-1]
    first = next(iter(turns))
    sampler = sampler_of(run, first, known[first])
    return Sharing(
        known, turns, (last.whole if parts else last.length) or 0, read,
        all(used[rank] is turn and is_whole(known[rank], turn) for rank, turn in turns.items()), parts,
        (sampler or known[first]).site,
    )  # fmt: skip


def chosen(turn: Turn) -> Turn:
    """An iteration without the batches that the script passes over, as one does that is given those of all ranks; as it
    is where it trains on most of them."""
    used = [batch for batch in turn.batches if batch.backwards]
    few = len(turn.batches) < _CHOICE  # one that is fetched ahead has its backward told with the next
    return turn if few or len(used) > _TRAINED * len(turn.batches) else turn.of(used)


def is_whole(loader: protocol.Loader | None, turn: Turn) -> bool:
    """Whether it came to its end: trainers that know the number of batches do not ask for one more."""
    return bool(turn.exhausted) or (loader is not None and len(turn.batches) == loader.batches)


def _of_other_shares(turns: list[Turn], loaders: list[protocol.Loader]) -> bool:
    """Whether ranks read different samples under most of their indices, as of lists that were cut by rank before; a few
    that both read may only have been augmented anew."""
    if any(loader.numbered is not None for loader in loaders):
        return False
    for one, two in combinations([contents(turn) for turn in turns], 2):
        equal = sum(bool(row and two.get(index)) for index, row in one.items())
        if equal > 0.5 * min(len(one), len(two)) and not shared(one, two)[0]:
            return True
    return False


def unread(sharing: Sharing, ranks: list[int]) -> list[tuple[int, ...]]:
    """The shares that none of these ranks reads, of the data that they have in common, each as the sampler's ranks at
    all levels that share out; those of which the run does not know the number are none."""
    levels = [{rank: level[rank] for rank in ranks} for level in sharing.sharding]
    sizes = [{each.shares for each in level.values()} for level in levels]
    if not levels or any(len(size) > 1 for size in sizes) or any(e.rank is None for v in levels for e in v.values()):
        return []
    counts = [size.pop() for size in sizes]
    taken = {tuple(level[rank].rank for level in levels) for rank in ranks}
    if prod(counts) > 4096:
        return []
    shares: list[tuple[int, ...]] = [()]
    for count in counts:
        shares = [(*share, each) for share in shares for each in range(count)]
    return [share for share in shares if share not in taken]


def has_own_data(run: Run, sharing: Sharing) -> bool:
    """Whether each rank's data set is another: parts of one that were seen to share no sample; or, under equal indices,
    samples that differ, although no rank's own do when it reads them again."""
    turns = {rank: [t for t in training_turns(run, rank) if t.loader == sharing.turns[rank].loader][:2]
             for rank in sharing.ranks}  # fmt: skip
    if sharing.own:
        read = [
            {index for turn in each for batch in turn.batches for index in batch.event.whole or ()}
            for each in turns.values()
        ]
        return all(read) and all(one.isdisjoint(two) for one, two in combinations(read, 2))
    rows = [[contents(turn) for turn in each] for each in turns.values()]
    if not all(_is_constant(each) for each in rows):
        return False
    merged: list[Rows] = [{index: row for turn in each for index, row in turn.items() if row} for each in rows]
    for one, two in combinations(merged, 2):
        common = [index for index in one if index in two]
        if len(common) < _REREAD or any(_alike(one[index], two[index]) for index in common):
            return False
    return True


def _is_constant(turns: list[Rows]) -> bool:
    """Whether a rank has read some samples twice, and found them as they were."""
    if len(turns) < 2:
        return False
    again = [index for index, row in turns[0].items() if row and turns[1].get(index)]
    return len(again) >= _REREAD and all(turns[0][index] == turns[1][index] for index in again)


def _alike(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    return any(mine == theirs for mine, theirs in zip(one, two, strict=False))
