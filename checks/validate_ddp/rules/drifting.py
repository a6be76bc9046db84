"""Parameters that optimizers move and that drift apart between ranks, although these train one model."""

from __future__ import annotations

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.record.events import Site
from validate_ddp.record.run import Run
from validate_ddp.record.unaveraged import (
    differ_widely,
    each_step_sends,
    parted,
    sent,
    shared_out,
    started_equal,
    trained,
    why_under_wrapper,
    without,
)
from validate_ddp.record.updates import (
    added_at,
    averaged_by_hand,
    common_steps,
    differing,
    other_rates,
    parameters,
    replicas_apart,
    shapes,
    taken,
    updates,
)
from validate_ddp.record.verdict import Note, Observation
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol


def drift(run: Run, optimizer: protocol.Optimizer) -> Observation | None:
    """What an optimizer moves apart, where it is not meant."""
    apart = _replicated(run, optimizer) or _unwrapped(run, optimizer)
    for look in (_under,) if run.wraps else (_parted, _whole, _never):
        apart = apart or look(run, optimizer)
    return apart


def _replicated(run: Run, optimizer: protocol.Optimizer) -> Observation | None:
    """Parameters of which a mesh says that several ranks hold the same."""
    found = replicas_apart(run, optimizer.optimizer)
    if found is None:
        return None
    count, apart = found
    ranks = next(iter(apart.values()))
    since = "before the first step" if not count else f"from step {count} on"
    message = (
        f"{len(apart)} parameters of this optimizer ({shapes(run, optimizer.optimizer, list(apart))}), of which the "
        f"ranks {', '.join(map(str, ranks))} of a mesh are to hold the same, differ between them {since}"
    )
    sharded = run.of(run.ranks[0], protocol.Sharded)
    site = optimizer.site if count or not sharded else sharded[-1].site
    return Observation(WARNING if run.truncated else ERROR, site, message, (), ranks)


def _unwrapped(run: Run, optimizer: protocol.Optimizer) -> Observation | None:
    """Parameters that no wrapper reduces and that drift apart: in a script with DDP as their gradients do, in one
    without although their gradients are equal on all ranks, which only a reduction makes them. What is part of a module
    whose calls send something to other ranks may be a part of a model that lies on all of them."""
    number = optimizer.optimizer
    wraps = run.wraps or {event.kind for _, event in run.each(protocol.Sharded)} == {"fully_shard"}
    parts = {at for rank in run.replicas if (held := parameters(run, rank).get(number)) for at in held.talking}
    for count in range(1, common_steps(run, number) + 1):
        apart = differing(run, number, count, "params", wrapped=False)
        if not apart:
            continue
        alike = not differing(run, number, count, "grads", wrapped=False)
        if wraps and not alike:
            whole = [at for at in apart if at not in parts]
            return _apart(run, optimizer, count, whole, "are reduced by no wrapper") if whole else None
        steps = taken(run, number, count)
        averaged = all(any(grads) and None not in grads for grads in (step.grads or () for step in steps))
        if not wraps and averaged and alike:
            return _apart(run, optimizer, count, apart, "get the same gradients on every rank")
    return None


def _parted(run: Run, optimizer: protocol.Optimizer) -> Observation | None:
    """Parameters whose gradients the script averages, and that part where some ranks have no gradient of them, or
    where each changes the average."""
    number = optimizer.optimizer
    found, among = parted(run, number), sent(run, number)
    if found is None or among.rewritten or len(run.ranks) < run.world_size:
        return None
    lacking = without(run, number, found.step, found.places)
    step, total = taken(run, number, found.step)[0], len(parameters(run, run.ranks[0])[number].shapes)
    what = f"{len(found.places)} of {total} parameters ({shapes(run, number, found.places)})"
    site: Site = step.site
    if lacking and not (among.partly or among.all_to_all) and each_step_sends(run, number, among):
        events = run.by_rank[run.ranks[0]]
        calls = [call for at in among.model if (call := events[at]).time < step.time]
        site = next((call.site for call in calls[::-1] if isinstance(call, protocol.Collective)), site)
        who = f"rank {lacking[0]} has" if len(lacking) == 1 else f"ranks {', '.join(map(str, lacking))} have"
        why = f"{who} no gradient of some of them then, and what others send for these is not met by its like"
    elif found.averaged and not lacking and differ_widely(run, number, found.places):
        why = other_rates(run, number, found.step) or (
            "each rank changes the average before its step, as by a norm of what it holds"
        )
    else:
        return None
    message = f"{what}, whose gradients are averaged, differ between ranks from step {found.step} on: {why}"
    severity = ERROR if run.outcome == "finished" and not run.truncated else WARNING
    notes = (Note(step.site, "the step after which they differ"),)
    return Observation(severity, site, message, notes, tuple(run.ranks), since=((run.ranks[0], step.time),))


def _whole(run: Run, optimizer: protocol.Optimizer) -> Observation | None:
    """Parameters that each rank holds whole, beside others that all ranks hold in shards: of one model there is one of
    each. What sends samples from rank to rank may have weights of its own on each."""
    number = optimizer.optimizer
    held, last = parameters(run, run.ranks[0])[number], common_steps(run, number)
    among = sent(run, number)
    if set(held.mesh) != set(run.ranks) or any(run.each(protocol.Sharded)) or among.all_to_all or among.rewritten:
        return None
    for count in range(1, last + 1):
        apart = trained(run, number, count, differing(run, number, count, "params", wrapped=False))
        lasting = sorted({*apart}.intersection(differing(run, number, last, "params", wrapped=False)))
        if lasting and started_equal(run, number, lasting) and differ_widely(run, number, lasting):
            step = taken(run, number, count)[0]
            message = (
                f"{len(lasting)} parameters ({shapes(run, number, lasting)}) that each rank holds whole, beside those "
                f"that the ranks of a mesh hold in shards, are equal at first and differ from step {count} on: the "
                "ranks compute with other inputs, or their gradients are parts that are not added up"
            )
            since = ((run.ranks[0], step.time),)
            return Observation(WARNING, step.site, message, (), tuple(run.ranks), since=since)
    return None


def _never(run: Run, optimizer: protocol.Optimizer) -> Observation | None:
    """Gradients of a script without DDP that nothing averages, or not all of them, although the ranks have the training
    data of one model in common.

    What is sharded, lies on some ranks only, or is averaged now and then in the place of gradients, is by design.
    """
    number = optimizer.optimizer
    shared = shared_out(run)
    if shared is None or list(run.each(protocol.Sharded)) or len(run.ranks) < run.world_size:
        return None
    for count in range(1, common_steps(run, number) + 1):
        apart = trained(run, number, count, differing(run, number, count, "grads", wrapped=False))
        if set(apart).isdisjoint(differing(run, number, count, "params", wrapped=False)):
            continue
        told = _what(run, number, count, apart)
        if told is None or not (shared[1] or started_equal(run, number, apart)):
            return None
        # In a run that was cut short an average that comes late may not have been reached.
        sure = shared[1] and run.outcome == "finished" and not run.truncated
        severity, message = told if sure else (WARNING, told[1])
        step = taken(run, number, count)[0]
        site: Site = step.site
        notes = (Note(shared[0], "the ranks have the data of one model in common"),)
        since = ((run.ranks[0], step.time),)
        return Observation(severity, site, message, notes, tuple(run.ranks), since=since)
    return None


def _what(run: Run, number: int, count: int, apart: list[int]) -> tuple[str, str] | None:
    """Severity and message; None for what may be meant so."""
    among, equal = sent(run, number), started_equal(run, number, apart)
    total = len(parameters(run, run.ranks[0])[number].shapes)
    ends = f"parameters differ between ranks from step {count} on" + ("" if equal else ", and did before it")
    if among.partly or among.all_to_all:
        return None
    if not among.model and not (among.unknown and among.rewritten):
        what = "gradients are never averaged: no collective carries them from rank to rank, and "
        if among.in_the_end:  # as one of the ways to train that average models has it; a test of few steps looks alike
            return WARNING, f"{what}{ends}: something is summed up only after the last step"
        return ERROR, what + ends
    wide = differ_widely(run, number, apart)
    if among.rewritten or not equal or wide is False:
        return None
    if not each_step_sends(run, number, among):
        return WARNING, f"what ranks send each other is not sent between a backward and its step each time: {ends}"
    severity = ERROR if wide else WARNING
    if len(apart) == total:
        return severity, f"gradients are sent between ranks before each step, and differ all the same: {ends}"
    head = f"the gradients of {len(apart)} of {total} parameters ({shapes(run, number, apart)}) are not averaged, "
    return severity, f"{head}those of the others are: these {ends}"


def _apart(run: Run, optimizer: protocol.Optimizer, count: int, apart: list[int], what: str) -> Observation:
    number = optimizer.optimizer
    equal = started_equal(run, number, apart)
    message = (
        f"{len(apart)} parameters of this optimizer ({shapes(run, number, apart)}) {what}: "
        + ("equal at first, they " if equal else "they start apart, and ")
        + f"differ between ranks from step {count} on"
    )
    rates = other_rates(run, number, count)
    message += f": {rates}" if rates else ""
    severity = ERROR if equal or what.startswith("get") else WARNING
    since = ((run.ranks[0], taken(run, number, count)[0].time),)
    site: Site = added_at(run, number, apart[0]) or optimizer.site
    return Observation(severity, site, message, (), tuple(run.ranks), since=since)


def _under(run: Run, optimizer: protocol.Optimizer) -> Observation | None:
    """Parameters that DDP wraps, and whose gradients it has reduced: something else moves the ranks apart."""
    number = optimizer.optimizer
    steps = updates(run, run.ranks[0]).get(number, [])
    for count, update in enumerate(steps[: common_steps(run, number)], 1):
        training = [event for event in update.forwards if event.grad]
        # Without a reduction they differ by another rule, or until they are averaged, as with local SGD.
        if not training or not all(event.sync and event.ranks == run.ranks for event in training):
            return None
        if not any(event.armed for event in update.backwards):
            return None
        apart = differing(run, number, count, "params", wrapped=True)
        if apart and averaged_by_hand(run, number):
            return None  # what a hook does in the place of DDP's reduction may be meant, as in post-local SGD
        if apart:
            site: Site = update.step.site
            message = (
                f"{len(apart)} parameters under DDP differ between ranks after step {count}: "
                + why_under_wrapper(run, number, count, apart)
            )
            since = ((run.ranks[0], update.step.time),)
            return Observation(ERROR, site, message, (), tuple(run.ranks), since=since)
    return None
