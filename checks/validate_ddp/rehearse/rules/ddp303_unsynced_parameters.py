"""A run shows DDP303: parameters drift apart between ranks, be they outside of the DDP wrapper or under it."""

from __future__ import annotations

from validate_ddp.catalogue import ERROR, WARNING
from validate_ddp.rehearse.log import Event
from validate_ddp.rehearse.run import Run, Site
from validate_ddp.rehearse.updates import Update, common_steps, differing, parameters, taken, updates
from validate_ddp.rehearse.verdict import HELD, NOT_OBSERVED, Observation, Verdict


def judge(run: Run) -> Verdict:
    """Compares parameters after each step. A script without DDP counts where its ranks step on equal gradients: they
    train one model then, and must hold one."""
    if run.world_size < 2 or len(run.ranks) < 2:
        return NOT_OBSERVED
    found = []
    looked = False
    wrapping = bool(list(run.each("ddp")))
    steps = updates(run, run.ranks[0])
    for optimizer in run.of(run.ranks[0], "optimizer"):
        number = optimizer["optimizer"]
        if optimizer["inner"] or not common_steps(run, number):
            continue
        looked = looked or wrapping
        seen = _outside(run, optimizer) if wrapping else _by_hand(run, optimizer)
        seen = seen or (_under(run, number, steps.get(number, [])) if wrapping else None)
        if seen:
            found.append(seen)
    return Verdict(True, tuple(found)) if found else (HELD if looked else NOT_OBSERVED)


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


def _apart(run: Run, optimizer: Event, count: int, apart: list[int], what: str) -> Observation:
    number = optimizer["optimizer"]
    equal = _equal_at_first(run, number, apart)
    shapes = ", ".join(str(tuple(parameters(run, run.ranks[0])[number]["shapes"][at])) for at in apart[:3])
    message = (
        f"{len(apart)} parameters of this optimizer ({shapes}) {what}: "
        + ("equal at first, they " if equal else "they start apart, and ")
        + f"differ between ranks from step {count} on"
    )
    severity = ERROR if equal or what.startswith("get") else WARNING
    return Observation("DDP303", severity, optimizer["site"], message, (), tuple(run.ranks))


def _equal_at_first(run: Run, number: int, places: list[int]) -> bool:
    before = [parameters(run, rank)[number]["before"] for rank in run.ranks]
    return all(each[at] == before[0][at] for each in before for at in places)


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
            return Observation("DDP303", ERROR, site, message, (), tuple(run.ranks))
    return None


def _why(run: Run, number: int, count: int, apart: list[int]) -> str:
    rates = [step.get("rates") for step in taken(run, number, count)]
    if any(rate != rates[0] for rate in rates):
        shown = ", ".join(f"{rate[0]:g}" for rate in rates if rate)
        return f"the learning rate is another on each rank ({shown})"
    if count == 1 and not _equal_at_first(run, number, apart):
        return "they did before it, although DDP makes them equal when it wraps the model"
    if differing(run, number, count, "grads", wrapped=True):
        return "their gradients were changed on some ranks after DDP had reduced them"
    return "the gradients are equal, and so are the learning rates; the optimizer's state or the parameters are not"
