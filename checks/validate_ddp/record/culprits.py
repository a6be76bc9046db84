"""Which call of two ranks that diverge is the one to blame, and of what kind it is."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from validate_ddp.findings import ERROR
from validate_ddp.record.run import Run, Site, once
from validate_ddp.record.sequences import Divergence, divergences
from validate_ddp.record.source_lines import conditional, is_in_handler
from validate_ddp.record.verdict import Note, Observation
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SHARDED = {
    "consolidate_state_dict", "state_dict", "full_optim_state_dict", "optim_state_dict", "get_state_dict",
    "get_model_state_dict", "get_optimizer_state_dict", "save", "async_save", "load", "full_tensor",
}  # fmt: skip
"""Functions of torch that collect or write the shards of all ranks."""


FORWARD, SHARDS, IN_HANDLER, PLAIN = "forward", "shards", "in handler", "plain"
"""A forward of the wrapper; a collective that collects shards; one in an exception handler; any other."""


class Culprit(NamedTuple):
    """A call that only one rank makes. kind: FORWARD, SHARDS, IN_HANDLER or PLAIN. peer: what the other rank called
    instead. since: from when on each of both does something else."""

    kind: str
    rank: int
    call: protocol.GroupCall
    other: int
    peer: protocol.GroupCall | None
    since: tuple[tuple[int, float], ...]


@once
def culprits(run: Run) -> list[Culprit]:
    """Calls that some ranks make and others do not, one for each pair of ranks and group."""
    found = []
    for divergence in divergences(run):
        rank = _blamed(run, divergence)
        if rank is None:
            continue
        call, peer = (
            (divergence.mine, divergence.theirs) if rank == divergence.rank else (divergence.theirs, divergence.mine)
        )
        if call is not None:
            other = divergence.other if rank == divergence.rank else divergence.rank
            unseen = _in_unseen_call(run, other) if peer is None else None
            if unseen is not None:
                rank, other, call, peer = other, rank, unseen, call
            found.append(Culprit(_kind(call), rank, call, other, peer, since(divergence)))
    return found


def _in_unseen_call(run: Run, rank: int) -> protocol.Collective | None:
    """The call in which a rank was when the run was ended, of a function that collects shards by operations which are
    not observed; only under a condition on the rank."""
    where = run.where.get(rank)
    if where is None or where.via not in SHARDED or conditional(where) is None:
        return None
    return protocol.Collective(n=0, op=where.via, site=where)


def _blamed(run: Run, divergence: Divergence) -> int | None:
    if divergence.what not in ("operation", "call", "missing"):
        return None
    if divergence.mine is None or divergence.theirs is None:
        return divergence.extra
    mine, theirs = (conditional(call.site) is not None for call in (divergence.mine, divergence.theirs))
    if mine != theirs:
        return divergence.rank if mine else divergence.other
    # A run that hung has not come to what both would have called: there the counts of calls say little.
    told = not mine and (divergence.what == "call" or run.stop is None)
    return divergence.extra if told else None


def _kind(call: protocol.GroupCall) -> str:
    if isinstance(call, protocol.Forward):
        return FORWARD
    if call.site.via in SHARDED:
        return SHARDS
    return IN_HANDLER if is_in_handler(call.site) else PLAIN


def since(divergence: Divergence) -> tuple[tuple[int, float], ...]:
    """From when on each of the two ranks does something else; ``inf`` for one that calls nothing more."""
    sides = ((divergence.rank, divergence.mine), (divergence.other, divergence.theirs))
    return tuple((rank, event.time if event is not None else inf) for rank, event in sides)


def ended(run: Run, rank: int) -> str:
    """That a rank has come to its end, in words; "" for one that had not when the run was ended."""
    state = run.stop.ranks.get(rank) if run.stop is not None else None
    gone = state is not None and state.ended
    if not run.of(rank, protocol.Exit) and not gone:
        return ""
    code = state.code if state is not None and gone else run.codes.get(rank)
    return "has ended" + (f" (exit code {code})" if code is not None else "")


def whereabouts(run: Run, rank: int) -> Note | None:
    """Where a rank is that does not come to a call, or what it did last before its end."""
    gone = ended(run, rank)
    if not gone:
        return Note(run.where[rank], f"where rank {rank} is instead") if rank in run.where else None
    calls = [each for each in run.by_rank.get(rank, ()) if isinstance(each, _LEAVING) and each.site.frames]
    return Note(calls[-1].site, f"rank {rank} {gone}: this is the last that it called") if calls else None


_LEAVING = (protocol.GroupCall, protocol.InnerForward, protocol.Step, protocol.Batch, protocol.Iteration)


def observations(run: Run, kind: str, severity: str, what: str) -> tuple[Observation, ...]:
    """What calls of one kind show, one for each place; errors where the run has hung on them."""
    severity = ERROR if run.outcome == "hang" else severity
    found: dict[tuple[str, int], Observation] = {}
    for culprit in culprits(run):
        if culprit.kind == kind:
            call = culprit.call.site
            guarded = conditional(call)
            site = Site((guarded,)) if guarded else call
            message = f"{what}: rank {culprit.rank} calls {named(culprit.call)}, rank {culprit.other} " + (
                f"calls {named(culprit.peer)} at {short(culprit.peer.site)}" if culprit.peer else _absent(run, culprit)
            )
            note = _instead(run, culprit)
            seen = Observation(
                severity, site, message, (note,) if note else (), (culprit.rank,), call, since=culprit.since
            )
            found.setdefault(site.place, seen)
    return tuple(found.values())


def _instead(run: Run, culprit: Culprit) -> Note | None:
    if culprit.peer is None:
        return whereabouts(run, culprit.other)
    gone = ended(run, culprit.other)
    where = f"rank {culprit.other} calls this instead, and {gone} since" if gone else ""
    return Note(culprit.peer.site, where or f"where rank {culprit.other} is instead")


def _absent(run: Run, culprit: Culprit) -> str:
    gone = ended(run, culprit.other)
    if gone:
        return f"calls none: it {gone}"
    if run.outcome == "hang" and not run.of(culprit.other, protocol.Exit):
        still = run.plan.get("hang")
        return "does not come to it" + (f", and has stood still for {still:g} s (--hang)" if still else "")
    return "calls none"


def named(call: protocol.GroupCall) -> str:
    """A call as people say it."""
    if isinstance(call, protocol.Forward):
        return "the forward of DistributedDataParallel"
    if isinstance(call, protocol.Backward):
        return "backward, which reduces gradients"
    via = call.site.via
    return f"`{call.called}`" + (f" (in `{via}`)" if via and via != call.called else "")


def short(site: Site) -> str:
    """``train.py:88``."""
    return f"{site.own.path.rpartition('/')[2]}:{site.own.line}"
