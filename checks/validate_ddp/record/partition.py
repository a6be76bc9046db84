"""What follows from the partition check: whether a gradient is right, what is wrong with it in words, and where."""

from __future__ import annotations

import math
from typing import NamedTuple

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.record.references import multiples, reference, right, sums
from validate_ddp.record.run import Run
from validate_ddp.record.unaveraged import sent, shared_out
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.partition.readout import (
    COUPLED,
    MEAN,
    SAME,
)

_SECONDS, _PATIENCE, _PARAMETERS = 15.0, 60.0, 30_000_000
"""Of work up to the first step, with all that it waits, and of the largest optimizer: the check takes about as long for
each of its short runs. What is judged is not to hang on what else the machine does."""

WRONG, UNREDUCED, NORM, SHARES, COUPLING = "wrong factor", "not reduced", "norm", "other shares", "coupled"
SLOPE, PARTS, UPDATE = "not the slope", "parts", "update"


class Judgement(NamedTuple):
    """kind: see above. message: what is wrong, in words. names: of the parameters."""

    severity: str
    kind: str
    message: str
    names: tuple[str, ...]


def first_step_after(run: Run) -> float:
    """Seconds from the import of torch to the end of the first rank's first step; 0 where there is none."""
    began = min((event.time for _, event in run.each(protocol.Hello)), default=0.0)
    return min((event.time - began for _, event in run.each(protocol.Step)), default=0.0)


def dearness(run: Run) -> str:
    """Why the check is not cheap, in words; "" where it is."""
    seconds = first_step_after(run)
    busy = min((event.busy for _, event in run.each(protocol.Step) if event.busy), default=seconds)
    if min(seconds, busy) > _SECONDS or seconds > _PATIENCE:
        return f"the first step comes after {seconds:.0f} s"
    sizes = [sum(map(math.prod, event.shapes)) for _, event in run.each(protocol.Parameters)]
    if max(sizes, default=0) > _PARAMETERS:
        return f"the model has {max(sizes) / 1e6:.0f} million parameters"
    return ""


def reduced_at(run: Run) -> protocol.Frame | None:
    """The line that makes the gradient of the first rank's first step what it is: of the reduction by hand after the
    last backward, or of that backward, which reduces where there is a wrapper. A reduction of less than the largest may
    be of a loss, or a norm."""
    found: protocol.Site | None = None
    most = 0.0
    by_hand = not run.wraps and not any(run.each(protocol.Sharded))
    for event in run.of(run.ranks[0], protocol.Backward, protocol.Collective):
        if isinstance(event, protocol.Backward):
            found, most = event.site, 0.0
        elif by_hand and found is not None and event.op.startswith(("all_reduce", "reduce")):
            size = math.inf if event.shape is None else math.prod(event.shape)
            if size >= most:
                found, most = event.site, size
    return found.own if found is not None else None


def replicas(run: Run) -> str:
    """How sure it is that the ranks are to be one model after each step, as a severity; "" where they are not.

    They are meant to differ where the script itself writes parameters between steps, from what ranks send each other,
    as local SGD does. Without a wrapper ranks may train models of their own, unless they share the data of one; and a
    run that was cut short may not have come to an average.
    """
    if not run.ranks:
        return ERROR
    for number in {event.optimizer for event in run.of(run.ranks[0], protocol.Parameters)}:
        among = sent(run, number)
        if among.rewritten and (among.model or among.unknown or among.in_the_end):
            return ""
    if run.wraps or any(run.each(protocol.Sharded)):
        return WARNING if run.truncated else ERROR
    shared = shared_out(run)
    if shared is None:
        return ""
    return ERROR if shared[1] and not run.truncated else WARNING


def is_coupled(event: protocol.Partition) -> bool:
    """Whether some gradient is of no combination of the tapes, nor that of one process on all of them, and has to be.
    Where ranks hand each other only what has no gradient, as the keys of a contrastive loss, or its permutation, what
    they have may hang on how many they are, and on whom they draw."""
    return event.union != [] and event.exchanges and _has_coupled(event)


def _has_coupled(event: protocol.Partition) -> bool:
    return any(each.kind == COUPLED for each in event.readings if each.target == "rank")


def told_of(event: protocol.Partition) -> str:
    """The fact, in a line."""
    kinds = "float64" if event.float64 else "float32"
    wrong = judgements(event)
    if not event.compared and not wrong:
        return f"not compared: {event.why}"
    if wrong:
        return f"{wrong[0].message} ({kinds})"
    rest = f", {event.unnamed} of no model not compared" if event.unnamed else ""
    if event.own:
        rest += f", without {_named(tuple(event.own))}, of which each rank has its own"
    if not event.repeats:
        return "not judged: one process does not have the same gradient twice"
    if event.apart:
        return f"not judged: given the same batches, {event.apart}"
    how, why = _how(event)
    return f"{how} ({event.parameters} parameters, {kinds}{rest})" if how else f"not judged: {why}"


def _how(event: protocol.Partition) -> tuple[str, str]:
    """What a gradient is that nothing is wrong with; or, behind that, why it is not judged."""
    of_ranks = [each for each in event.readings if each.target == "rank"]
    made = {each.kind for each in of_ranks}
    if event.union == []:
        return "that of one process on the joined batch", ""
    differ = {name for name, each in _by_name(of_ranks).items() if _differ(each, event.float64)}
    if len(set(event.tapes)) > 1 and differ:
        if differ <= {*event.alike}:
            of = "" if len(differ) == len(_by_name(of_ranks)) else f"that of {_named(tuple(sorted(differ)))} is "
            return f"{of}each rank's own, of which the optimizer's own step makes one", ""
        if all(_in_groups(each, event.float64) for each in _by_name(of_ranks).values()):
            return "", "each is made of the batches of a group of ranks"
        return "each rank's own: the ranks are not one model after each step", ""
    if COUPLED in made and event.dup == []:
        return "that of one process, where all ranks are given one batch", ""
    if COUPLED in made and is_coupled(event):
        return "", "the ranks exchange more than gradients, and the joined batch is no reference"
    if COUPLED in made:
        return "", "it is not made of what one process has on each rank's batches, nor on the joined batch"
    if event.scaled:
        how = "each rank's batches in it; how often is not judged, as the script scales gradients by their own size"
        return how, ""
    if not (made <= {MEAN} or all(_again(each[0], event) for each in _by_name(of_ranks).values())):
        return "", "how often each rank's batches are in it hangs on the batches"
    return right(event, made), ""


def judgements(event: protocol.Partition) -> list[Judgement]:
    """What is wrong with the gradients; nothing where they are right, or where that cannot be told."""
    if event.off_slope:
        return [_off_slope(event)]
    if event.parts:
        message = _parts(tuple(event.parts), "and each holds all of it, as of others whose gradients are equal")
        return [Judgement(WARNING, PARTS, message, tuple(event.parts))]
    if not event.compared or not event.repeats:
        return []
    found = _norms(event)
    if event.union is None or event.union:  # else just what one process has on the same global batch
        for optimizer in sorted({each.optimizer for each in event.readings}):
            readings = [each for each in event.readings if each.optimizer == optimizer]
            found += _of_optimizer(event, readings)
    found = [each for one in found for each in _founded(one, event)]
    return found or _moved(event)


def _moved(event: protocol.Partition) -> list[Judgement]:
    """A right gradient of which an optimizer makes another update than in one process."""
    if not event.moved or event.apart:
        return []
    names = tuple(event.moved)
    message = (
        f"the gradient is that of one process, and `{event.mover}` makes another update of it: "
        f"{event.moved_by:.0%} of that of {_named(names)} points elsewhere, as where a norm or a product is taken of "
        "the part of a matrix that a rank holds"
    )
    return [Judgement(WARNING, UPDATE, message, names)]


def _founded(one: Judgement, event: protocol.Partition) -> list[Judgement]:
    """What of a judgement may rest on the gradients of one process: an error where ranks that are given the same do the
    same. Where they do not, only that nothing at all is reduced is worth a warning; a norm needs no such reference."""
    if one.kind == NORM or event.apart == "":
        return [one]
    if event.apart is None or (one.kind == UNREDUCED and len(one.names) >= event.parameters):
        return [one._replace(severity=WARNING)]
    return []


def _of_optimizer(event: protocol.Partition, readings: list[protocol.Reading]) -> list[Judgement]:
    """Factors are not judged where the script itself scales gradients by something of the data, as a clipping of its
    own does: what it had before is not known on the ranks."""
    of_ranks = [each for each in readings if each.target == "rank"]
    mean = max((len(each.names) for each in of_ranks if each.kind == MEAN), default=0)
    found: list[Judgement] = []
    by_name = {name: each for name, each in _by_name(of_ranks).items() if _again(each[0], event)}
    several = len(set(event.tapes)) > 1
    differ = {name: each for name, each in by_name.items() if several and _differ(each, event.float64)}
    unreduced = tuple(
        name for name, each in differ.items() if name not in event.alike and not _in_groups(each, event.float64)
    )
    severity = event.replicas if len(unreduced) == len(by_name) else ERROR
    if unreduced and severity and not event.averages:
        found.append(Judgement(severity, UNREDUCED, _unreduced(unreduced, len(by_name)), unreduced))
    parts = tuple(
        name for name, each in by_name.items()
        if not several and name not in event.alike and _differ(each, event.float64)
    )  # fmt: skip
    if parts:
        found.append(Judgement(WARNING, PARTS, _parts(parts, "though all have the same batches"), parts))
    left = {name: each[0] for name, each in by_name.items() if name not in differ and name not in parts}
    joined = [
        {name: each[0] for name, each in _by_name([each for each in readings if each.target == target]).items()}
        for target in ("union", "copies")
    ]
    for each in () if event.scaled else multiples(left, joined, event):
        whose = f"of {_named(each.names)} " if mean or unreduced else ""
        message = reference(event).told(each, whose, event.world_size)
        found.append(Judgement(each.severity, WRONG, message, each.names))
    wrong = {name for each in found for name in each.names}
    left = {name: each for name, each in left.items() if name not in wrong}
    coupled = tuple(name for name, each in left.items() if each.kind == COUPLED)
    if coupled and event.dup and (event.union or (event.union is None and event.deals)):
        if event.exchanges and not event.batch_norms:
            message = f"the gradient of the first step is that of no process on the same batches{_of(coupled)}"
            found.append(Judgement(WARNING, COUPLING, message, coupled))
    union = [each for each in readings if each.target == "union" and not event.scaled]
    shares = _shares(left, union, event.float64)
    if shares is not None:
        found.append(shares)
    return found


def _off_slope(event: protocol.Partition) -> Judgement:
    """A gradient that is not the slope of the ranks' losses, though in one process it is that of the loss there."""
    name = event.off_slope.partition(":")[2]
    factor, others = (f"{value:.4g}" for value in (event.factor, event.others or 1.0))
    than = f", others' {others} times" if event.others is not None else ""
    message = (
        f"the gradient of `{name}` is {factor} times the slope of the ranks' losses{than}, and in one process that "
        "slope: what ranks send each other comes back wrong, or not at all, in the backward"
    )
    return Judgement(WARNING, SLOPE, message, (name,))


def _norms(event: protocol.Partition) -> list[Judgement]:
    """Whether clipping took the norm of the whole gradient."""
    off = [each for each in event.norms if abs(each - 1) > 1e-3]
    if not off:
        return []
    message = f"gradients are clipped by {off[0]:.3g} times their norm: not all ranks' parts are counted once"
    return [Judgement(ERROR, NORM, message, ())]


def _by_name(readings: list[protocol.Reading]) -> dict[str, list[protocol.Reading]]:
    """For each parameter how each rank's gradient is made."""
    found: dict[str, list[protocol.Reading]] = {}
    for each in readings:
        for name in each.names:
            found.setdefault(name, []).append(each)
    return found


def _differ(readings: list[protocol.Reading], float64: bool) -> bool:
    """Whether the ranks' gradients are made of different parts."""
    first = readings[0]
    return any(
        each.kind != COUPLED
        and first.kind != COUPLED
        and any(abs(a - b) > SAME[float64] for a, b in zip(first.coefficients, each.coefficients, strict=True))
        for each in readings[1:]
    )


def _again(reading: protocol.Reading, event: protocol.Partition) -> bool:
    """Whether ranks that are given one tape have as much of its gradient as they have of all: a reduction that drops
    what is small, or weighs by size, takes other parts of other gradients."""
    for each in event.readings if reading.kind != COUPLED else ():
        if each.target == "dup" and each.optimizer == reading.optimizer and {*reading.names} & {*each.names}:
            if each.kind == COUPLED:
                return False
            pairs = zip(sums(reading), sums(each), strict=True)
            if any(abs(a - b) > 10 * SAME[event.float64] for a, b in pairs):
                return False
    return True


def _in_groups(readings: list[protocol.Reading], float64: bool) -> bool:
    """Whether each rank's gradient is the mean of several ranks', though not of all: groups may train models of their
    own."""
    for each in readings:
        parts = [value for value in each.coefficients if abs(value) > SAME[float64]]
        tapes = {tape for tape, value in zip(each.tapes, each.coefficients, strict=False) if value in parts}
        if len(tapes) < 2 or max(parts) - min(parts) > SAME[float64]:
            return False
    return True


def _shares(left: dict[str, protocol.Reading], union: list[protocol.Reading], float64: bool) -> Judgement | None:
    """Whether the ranks count otherwise than one process would on the joined batches."""
    theirs = {name: each for each in union for name in each.names}
    names = []
    example: tuple[list[float], list[float]] | None = None
    for name, each in left.items():
        other = theirs.get(name)
        if other is None or COUPLED in (each.kind, other.kind):
            continue
        mine, its = _normal(each), _normal(other)
        if any(abs(a - b) > 10 * SAME[float64] for a, b in zip(mine, its, strict=True)):
            names.append(name)
            example = example or (mine, its)
    if example is None:
        return None
    whose, parts = "ranks' ", [_by_tape(each, union[0]) for each in example]
    if max(abs(a - b) for a, b in zip(*parts, strict=True)) < SAME[float64]:
        whose, parts = "micro-", [list(each) for each in example]
    one, other_one = (", ".join(f"{value:.3g}" for value in each) for each in parts)
    message = f"the {whose}batches count {one} in the gradient, and {other_one} in that of one process on all of them"
    if min(map(abs, parts[0])) > SAME[float64]:
        message += ": each divides by a count of its own"
    return Judgement(WARNING, SHARES, message, tuple(names))


def _by_tape(coefficients: list[float], reading: protocol.Reading) -> list[float]:
    found: dict[int, float] = {}
    for tape, value in zip(reading.tapes, coefficients, strict=True):
        found[tape] = found.get(tape, 0.0) + value
    return list(found.values())


def _normal(reading: protocol.Reading) -> list[float]:
    total = sum(reading.coefficients) or 1.0
    return [each / total for each in reading.coefficients]


def _unreduced(names: tuple[str, ...], count: int) -> str:
    if len(names) == count:
        return "the gradient of the first step is each rank's own: it is not reduced"
    return f"the gradient of {_named(names)} is each rank's own: it is not reduced, as the others are"


def _parts(names: tuple[str, ...], though: str) -> str:
    return (
        f"the gradient of {_named(names)} is another on each rank, {though}: each has a part of it, and nothing adds "
        "them up"
    )


def _named(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _of(names: tuple[str, ...]) -> str:
    return f", as in {_named(names)}"
