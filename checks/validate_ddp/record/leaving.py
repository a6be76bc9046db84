"""Ranks that leave a loop, come to their end or skip a batch while others go on, and the line at which they do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

from validate_ddp.record.culprits import named, short
from validate_ddp.record.iterations import Batch, Turn, consumed_turns
from validate_ddp.record.run import PEER_GONE, Frame, Run, Site
from validate_ddp.record.sequences import divergences
from validate_ddp.record.source_lines import conditional, departure, left_loop, only_break
from validate_ddp.record.verdict import Note
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

_IN_TURN = 0.4
"""Share of the batches that one rank trains on and the other does not, each way, where all are given all of them."""


class Leaving(NamedTuple):
    """What a rank does that others do not. site: the line that leads it there; call: what it calls then, where that is
    known. since: from when on it does something else."""

    site: Site
    message: str
    notes: tuple[Note, ...]
    rank: int
    since: float
    call: Site | None = None


def by_batches(run: Run) -> Iterator[Leaving | None]:
    """Of each iteration that a rank and the first one have in common: how one of them leaves it, or a batch of it."""
    if run.world_size < 2 or len(run.ranks) < 2:
        return
    first = run.ranks[0]
    mine = {(turn.loader, turn.number): turn for turn in consumed_turns(run, first)}
    for other in run.replicas[1:]:
        for turn in consumed_turns(run, other):
            peer = mine.get((turn.loader, turn.number))
            # Within Join, ranks that have left stand in for what the others still reduce.
            if peer is not None and not (turn.joined and peer.joined):
                yield _skipped(first, peer, other, turn) or _left(run, first, peer, other, turn)


def gone(run: Run) -> Leaving | None:
    """A rank that has broken out of a loop, under a condition on the rank, and calls what comes after it."""
    for divergence in divergences(run):
        if divergence.mine is None or divergence.theirs is None:
            continue
        for (rank, call), (other, peer) in permutations(
            ((divergence.rank, divergence.mine), (divergence.other, divergence.theirs)), 2
        ):
            line = left_loop(call.site.own, peer.site.own)
            if line is not None:
                place = Site((call.site.own._replace(line=line),))
                message = (
                    f"rank {rank} leaves the loop here, and calls {named(call)} at {short(call.site)}; rank {other} "
                    f"goes on in it, and calls {named(peer)} at {short(peer.site)}"
                )
                return Leaving(place, message, (), rank, call.time, call.site)
    return None


def ended(run: Run) -> Leaving | None:
    """A rank that has come to its end, while another goes on until it finds nobody there any more.

    One that had fewer batches is not meant.
    """
    for rank, error in run.each(protocol.UncaughtException):
        own = error.own
        if own is None or not PEER_GONE.search(error.message):
            continue
        for other in run.ranks:
            exits = [event for event in run.of(other, protocol.Exit) if event.time < error.time]
            well = exits and not run.of(other, protocol.UncaughtException) and not run.codes.get(other, 0)
            if well and not _ran_out(run, other, rank):
                line = only_break(own.path, own.line)
                if line is None and conditional(Site((own,))) is not None:
                    continue  # a call that is meant for some ranks only: DDP401 and its neighbours say so
                message = f"rank {other} has come to its end, rank {rank} goes on, and waits for it in vain"
                notes = (Note(Site((own,)), f"where rank {rank} is then"),) if line else ()
                place = Site((own._replace(line=line or own.line),))
                return Leaving(place, message, notes, other, exits[0].time)
    return None


def _ran_out(run: Run, rank: int, other: int) -> bool:
    """Whether a rank was given fewer batches in some iteration than another."""
    theirs = {(turn.loader, turn.number): len(turn.batches) for turn in consumed_turns(run, other)}
    return any(
        turn.exhausted and len(turn.batches) < theirs.get((turn.loader, turn.number), 0)
        for turn in consumed_turns(run, rank)
    )


def _skipped(first: int, peer: Turn, other: int, turn: Turn) -> Leaving | None:
    pairs = list(zip(peer.batches, turn.batches, strict=False))
    taken = [(bool(one.backwards), bool(two.backwards)) for one, two in pairs]
    if min(taken.count((True, False)), taken.count((False, True))) > _IN_TURN * len(taken):
        return None  # they take turns, each with batches of its own
    for at, (one, two) in enumerate(pairs):
        if bool(one.backwards) == bool(two.backwards):
            continue
        (rank, skipping), (went, training) = (
            ((first, peer), (other, two)) if two.backwards else ((other, turn), (first, one))
        )
        if len(skipping.batches) == at + 1 and skipping.exhausted is None:
            return None  # it may still have come to it
        return _no_backward(rank, went, skipping.batches[at], training, f"batch {at} of epoch {turn.number}")
    return None


def _no_backward(rank: int, went: int, skipping: Batch, training: Batch, when: str) -> Leaving:
    backward: Site = training.backwards[0].site
    start: Site = skipping.forwards[-1].site if skipping.forwards else skipping.event.site
    message = (
        f"rank {rank} makes no backward at {when}, rank {went} does: from there on their reductions are off by one"
    )
    notes = (Note(backward, f"the backward that rank {went} alone makes"),)
    return Leaving(_way_out(start, backward), message, notes, rank, skipping.event.time)


def _way_out(start: Site, backward: Site) -> Site:
    """The line that leaves, where there is one between the two; else that of the backward."""
    for frame in start.frames:
        for peer in backward.frames:
            if not frame.library and (frame.path, frame.function) == (peer.path, peer.function):
                line = departure(frame.path, frame.line, peer.line)
                return Site((Frame(frame.path, line or peer.line, frame.function, False),))
    return backward


def _left(run: Run, first: int, peer: Turn, other: int, turn: Turn) -> Leaving | None:
    """A rank that leaves the loop while another goes on to further batches."""
    for (rank, shorter), (went, longer) in (((first, peer), (other, turn)), ((other, turn), (first, peer))):
        if len(shorter.batches) >= len(longer.batches) or shorter.exhausted is not None or not shorter.batches:
            continue
        if not _goes_on_elsewhere(run, rank, shorter):
            continue
        site: Site = shorter.batches[-1].event.site
        line = departure(site.own.path, site.own.line, None)
        left = Site((site.own._replace(line=line or site.own.line),))
        message = (
            f"rank {rank} leaves the loop after {len(shorter.batches)} batches, rank {went} goes on to batch "
            f"{len(longer.batches)}: what they call no longer matches"
        )
        return Leaving(left, message, (), rank, shorter.batches[-1].event.time)
    return None


def _goes_on_elsewhere(run: Run, rank: int, turn: Turn) -> bool:
    """Whether the last that is known of a rank lies outside of what it called for the batches of a loop."""
    if run.of(rank, protocol.UncaughtException):
        return False
    if run.of(rank, protocol.Exit):
        return True
    inside = {event.site.place for batch in turn.batches for event in (*batch.forwards, *batch.backwards, *batch.steps)}
    calls = run.of(rank, protocol.GroupCall)
    return bool(calls) and calls[-1].site.place not in inside
