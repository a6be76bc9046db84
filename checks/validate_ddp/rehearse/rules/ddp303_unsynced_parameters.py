"""A run shows DDP303: parameters drift apart between ranks, outside of the DDP wrapper, under it, or without one."""

from __future__ import annotations

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.rehearse.log import Event
from validate_ddp.rehearse.run import Run, Site
from validate_ddp.rehearse.unaveraged import differ_widely, each_step_sends, sent, shared_out, started_equal, trained
from validate_ddp.rehearse.updates import Update, common_steps, differing, parameters, replicas_equal, taken, updates
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Note, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Compares parameters after each step. A script without DDP counts where its ranks step on equal gradients, or have
    the data in common: they train one model then, and must hold one. Held where all were seen to be equal."""
    if run.world_size < 2 or len(run.ranks) < 2:
        return NOT_OBSERVED
    found = []
    looked = apart = False
    wrapping = bool(list(run.each("ddp")))
    steps = updates(run, run.ranks[0])
    for optimizer in run.of(run.ranks[0], "optimizer"):
        number = optimizer["optimizer"]
        if optimizer["inner"] or not common_steps(run, number):
            continue
        seen = _outside(run, optimizer) if wrapping else _by_hand(run, optimizer) or _never(run, optimizer)
        seen = seen or (_under(run, number, steps.get(number, [])) if wrapping else None)
        if seen:
            found.append(seen)
        equal = _equal(run, number)
        looked, apart = looked or equal, apart or not equal
    return Verdict(True, tuple(found)) if found else (HELD if looked and not apart else NOT_OBSERVED)


def _equal(run: Run, number: int) -> bool:
    """Whether all that can be compared was seen to be equal on all ranks after every step."""
    seen = [replicas_equal(run, number, count) for count in range(1, common_steps(run, number) + 1)]
    return True in seen and False not in seen


def _outside(run: Run, optimizer: Event) -> Observation | None:
    """Parameters that no wrapper holds."""
    number = optimizer["optimizer"]
    for count in range(1, common_steps(run, number) + 1):
        apart = differing(run, number, count, "params", wrapped=False)
        if apart and differing(run, number, count, "grads", wrapped=False):
            return _apart(run, optimizer, count, apart, "are under no DDP wrapper")
    return None


def _by_hand(run: Run, optimizer: Event) -> Observation | None:
    """Parameters of a script without DDP whose gradients are equal on all ranks, which only a reduction makes them."""
    number = optimizer["optimizer"]
    for count in range(1, common_steps(run, number) + 1):
        apart = differing(run, number, count, "params", wrapped=False)
        steps = taken(run, number, count)
        averaged = all(any(step["grads"] or ()) and None not in step["grads"] for step in steps)
        if apart and averaged and not differing(run, number, count, "grads", wrapped=False):
            return _apart(run, optimizer, count, apart, "get the same gradients on every rank")
    return None


def _never(run: Run, optimizer: Event) -> Observation | None:
    """Gradients of a script without DDP that nothing averages, or not all of them, although the ranks have the training
    data of one model in common.

    What is sharded, lies on some ranks only, or is averaged now and then in the place of gradients, is by design.
    """
    number = optimizer["optimizer"]
    shared = shared_out(run)
    if shared is None or list(run.each("sharded")) or len(run.ranks) < run.world_size:
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
        site: Site = step["site"]
        notes = (Note(shared[0], "the ranks have the data of one model in common"),)
        since = ((run.ranks[0], step["time"]),)
        return Observation("DDP303", severity, site, message, notes, tuple(run.ranks), since=since)
    return None


def _what(run: Run, number: int, count: int, apart: list[int]) -> tuple[str, str] | None:
    """Severity and message; None for what may be meant so."""
    among, equal = sent(run, number), started_equal(run, number, apart)
    total = len(parameters(run, run.ranks[0])[number]["shapes"])
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
    shapes = ", ".join(str(tuple(parameters(run, run.ranks[0])[number]["shapes"][at])) for at in apart[:3])
    head = f"the gradients of {len(apart)} of {total} parameters ({shapes}) are not averaged, those of the others are: "
    return severity, f"{head}these {ends}"


def _apart(run: Run, optimizer: Event, count: int, apart: list[int], what: str) -> Observation:
    number = optimizer["optimizer"]
    equal = started_equal(run, number, apart)
    shapes = ", ".join(str(tuple(parameters(run, run.ranks[0])[number]["shapes"][at])) for at in apart[:3])
    message = (
        f"{len(apart)} parameters of this optimizer ({shapes}) {what}: "
        + ("equal at first, they " if equal else "they start apart, and ")
        + f"differ between ranks from step {count} on"
    )
    rates = _other_rates(run, number, count)
    message += f": {rates}" if rates else ""
    severity = ERROR if equal or what.startswith("get") else WARNING
    since = ((run.ranks[0], taken(run, number, count)[0]["time"]),)
    return Observation("DDP303", severity, optimizer["site"], message, (), tuple(run.ranks), since=since)


def _under(run: Run, number: int, steps: list[Update]) -> Observation | None:
    """Parameters that DDP wraps, and whose gradients it has reduced: something else moves the ranks apart."""
    for count, update in enumerate(steps[: common_steps(run, number)], 1):
        training = [event for event in update.forwards if event["grad"]]
        # Without a reduction they differ by another rule, or until they are averaged, as with local SGD.
        if not training or not all(event["sync"] and event["ranks"] == run.ranks for event in training):
            return None
        if not any(event["armed"] for event in update.backwards):
            return None
        apart = differing(run, number, count, "params", wrapped=True)
        if apart:
            site: Site = update.step["site"]
            message = f"{len(apart)} parameters under DDP differ between ranks after step {count}: " + _why(
                run, number, count, apart
            )
            since = ((run.ranks[0], update.step["time"]),)
            return Observation("DDP303", ERROR, site, message, (), tuple(run.ranks), since=since)
    return None


def _why(run: Run, number: int, count: int, apart: list[int]) -> str:
    rates = _other_rates(run, number, count)
    if rates:
        return rates
    if count == 1 and not started_equal(run, number, apart):
        return "they did before it, although DDP makes them equal when it wraps the model"
    if differing(run, number, count, "grads", wrapped=True):
        names = parameters(run, run.ranks[0])[number]["names"]
        grads = taken(run, number, count)[0]["grads"]
        without = sum(name is not None and grads[at] is None for at, name in enumerate(names))
        if without:
            return (
                f"their gradients are not reduced, as {without} others under DDP have none at this step, for which it "
                "waits: freeze parameters before the model is wrapped"
            )
        return "their gradients were changed on some ranks after DDP had reduced them"
    return "the gradients are equal, and so are the learning rates; the optimizer's state or the parameters are not"


def _other_rates(run: Run, number: int, count: int) -> str:
    rates = [step.get("rates") for step in taken(run, number, count)]
    if all(rate == rates[0] for rate in rates):
        return ""
    shown = ", ".join(f"{rate[0]:g}" for rate in rates if rate)
    return f"the learning rate is another on each rank ({shown})"
