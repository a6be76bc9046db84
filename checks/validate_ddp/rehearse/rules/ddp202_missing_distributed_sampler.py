"""A run shows DDP202: ranks train on the same samples, by index and by content."""

from __future__ import annotations

from validate_ddp.findings import ERROR
from validate_ddp.rehearse.coverage import Sharing, chosen, sharings, unread
from validate_ddp.rehearse.iterations import (
    Turn,
    contents,
    loader_of,
    sampler_of,
    shared,
    training_turn,
    training_turns,
)
from validate_ddp.rehearse.log import Event
from validate_ddp.rehearse.run import Run
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Compares the first iterations of each rank over its training loaders; needs DDP, which shares one model."""
    if run.world_size < 2 or not list(run.each("ddp")):
        return NOT_OBSERVED
    looked = False
    first = run.ranks[0]
    padded = {each.turns[first].loader for each in sharings(run) if _is_padded(each)}
    for turn in training_turns(run, first):
        loader = loader_of(run, first, turn.loader)
        if loader is None or loader["iterable"] or turn.number > 1:
            continue
        for other in run.replicas[1:]:
            peer = _same(run, other, turn, loader)
            if peer is None or _repeats_on_purpose(turn, peer) or turn.loader in padded:
                continue
            looked = True
            common, share = shared(contents(chosen(turn)), contents(chosen(peer)))
            if len(chosen(turn).batches) < len(turn.batches) and share <= 0.5:
                continue
            if common and (share > 0.5 or _is_whole(loader)):
                return Verdict(True, (_observation(run, first, other, loader, common, share),))
    # Shares that overlap a little may be another defect: there it is not said that none is read twice.
    well = all(sharing.repeated <= sharing.padding for sharing in sharings(run))
    return HELD if looked and well else NOT_OBSERVED


def _same(run: Run, rank: int, turn: Turn, loader: Event) -> Turn | None:
    other = training_turn(run, rank, turn.loader, turn.number)
    theirs = loader_of(run, rank, turn.loader)
    return other if theirs and theirs["site"].place == loader["site"].place else None


def _repeats_on_purpose(turn: Turn, peer: Turn) -> bool:
    """Whether samplers of the script's own take shares: one for repeated augmentation gives ranks the same samples."""
    return any(
        not mine["known"] and mine.get("replicas", 1) > 1 and mine.get("rank") != theirs.get("rank")
        for mine, theirs in zip(turn.samplers, peer.samplers, strict=False)
    )


def _is_padded(sharing: Sharing) -> bool:
    """Whether nothing is read twice but what fills up the shares of a sampler: of very small data that may be all."""
    return bool(sharing.sharding) and 0 < sharing.repeated <= sharing.padding and not unread(sharing, sharing.ranks)


def _is_whole(loader: Event) -> bool:
    """Whether each rank's loader is as long as the whole data set."""
    batches, size, length = loader["batches"], loader["batch_size"], loader["length"]
    if not batches or not size or not length:
        return False
    return bool((batches + 1) * size > length and batches * size > 0.75 * length)


def _observation(run: Run, first: int, other: int, loader: Event, common: int, share: float) -> Observation:
    sampler = sampler_of(run, first, loader)
    if share > 0.5:
        message = f"ranks {first} and {other} train on the same samples: {common} of those seen by both are equal"
    else:
        message = f"each rank's loader covers the whole data set of {loader['length']} samples: none is left to a peer"
    site = sampler["site"] if sampler else loader["site"]
    return Observation("DDP202", ERROR, site, message, (), (first, other))
