"""What one process is to the gradient of the ranks: what it was given, what may lie between the two, and the words.

In most scripts it is given what one rank was, and the mean of the ranks is to be the mean of what such processes have.
A script may hand it more, of itself: all micro-batches that the ranks share out for a step, or the global batch, where
no loader gives a rank its share. Then a multiple says less, as it hangs on whether the loss is a sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.child.validate_ddp_rehearsed.partition.readout import COUPLED, FACTOR, MEAN, MIXED, OWN, SAME

_EACH, _GLOBAL = "what one process has on each rank's batches", "that of one process on the global batch"


class Multiple(NamedTuple):
    """Parameters whose gradient is another multiple of the reference than it may be. sums: how many times it is there,
    by backward."""

    severity: str
    sums: tuple[float, ...]
    names: tuple[str, ...]
    number: float = 0.0
    """That by which one process divides its loss at last, or multiplies it, if it may stand for the ranks; else 0."""


class Reference(NamedTuple):
    """name: what it has. right: of a multiple that is right. undone: what the script may do elsewhere to a multiple,
    which makes it 1 then. below: in place of the name, of less than all of it; above: after what is said of more.
    settled: whether less than all of it is right for no loss. signed: whether what points the other way may be
    right."""

    name: str
    right: str
    undone: tuple[float, ...]
    below: str = ""
    above: str = "; that is right only for a loss that is a sum over the samples"
    settled: bool = False
    signed: bool = False

    def may_be(self, sums: Iterable[float], same: float) -> bool:
        """Whether a multiple is right, or cannot be told. same: within which two are one."""
        held = list(sums)
        if self.signed and min(held) < 0:
            return True
        return any(all(abs(value * times - 1) <= same for value in held) for times in self.undone)

    def told(self, found: Multiple, whose: str, size: int) -> str:
        """A multiple in words. whose: of which parameters, where others have another. size: ranks."""
        sums, factor = found.sums, found.sums[0]
        after = self.above if found.severity != ERROR and min(sums) > 1 else ""
        if found.number:
            after = f"; that is right only where the {found.number:g} by which the loss is {{}} is their number"
            after = after.format("divided" if factor > 1 else "multiplied")
        if max(sums) - min(sums) > 1e-3:
            each = ", ".join(f"{value:.3g}" for value in sums)
            return (
                f"the gradient {whose}counts its micro-batches {each} times, where one process counts each once{after}"
            )
        name = self.below if self.below and factor < 1 else self.name + _why(factor, size)
        return f"the gradient {whose}is {factor:.4g} times {name}{after}"


def _why(factor: float, size: int) -> str:
    if abs(factor - size) < 1e-3:
        return ": summed over the ranks, never divided"
    if abs(factor * size - 1) < 1e-3:
        return ": divided by the number of ranks twice, or only the own part is kept"
    return ""


def reference(event: protocol.Partition) -> Reference:
    """What the gradient of the ranks is a multiple of. Where a number of ranks stands in the script, one process
    divides by too much: what its backwards gave is the measure then. A sum may have a learning rate that is divided in
    its place; an average over the ranks is a part of the global batch's, of a loss that is a sum. What a step of the
    script's own undoes is seen by what becomes of the parameters."""
    undone: tuple[float, ...] = (1.0, event.scale, min(event.rate, 1.0))
    if event.joined:
        right = f"a part of {_GLOBAL}, as of an average of sums"
        undone = (*undone, event.rate, float(event.world_size))
        return Reference(_GLOBAL, right, undone, above="", signed=True)
    name, right = "the average of the ranks'", f"the sum of {_EACH}, whose loss is a sum"
    if event.rate < 1:
        right = f"the sum of {_EACH}, at a learning rate divided by their number"
    if event.spread:
        part = (
            "that of one process which does all micro-batches of the step: the ranks share them out and average their "
            "sums, which nothing divides by their number"
        )
        return Reference(name, right, undone, part)
    return Reference(name, right, undone, settled=True)


def multiples(
    left: Mapping[str, protocol.Reading], joined: Iterable[Mapping[str, protocol.Reading]], event: protocol.Partition
) -> list[Multiple]:
    """Those that are not right, of the parameters that are left.

    A loss that is a mean has a gradient that does not grow with the batch, and one that is a sum has one that does: the
    ranks may add theirs up then, and must not divide. joined: what one process has on the joined batch, or on copies of
    one rank's, tells; where neither does, as in a script without a loader, more than all is no error.
    """
    held, same = reference(event), SAME[event.float64]
    found: dict[tuple[str, tuple[float, ...]], list[str]] = {}
    for name, each in left.items():
        if each.kind not in (FACTOR, MIXED, OWN) or name in event.as_one:
            continue
        mine = sums(each)
        if held.may_be(mine, same):
            continue
        known = [sums(other[name]) for other in joined if name in other and other[name].kind != COUPLED]
        if known and all(abs(a - b) <= 10 * same for a, b in zip(mine, known[0], strict=True)):
            continue
        sure = known or (held.settled and min(mine) < 1 - same)
        severity = ERROR if sure and not _number(mine, event) else WARNING
        found.setdefault((severity, tuple(round(value, 4) for value in mine)), []).append(name)
    return [
        Multiple(severity, values, tuple(names), _number(values, event)) for (severity, values), names in found.items()
    ]


def _number(mine: Iterable[float], event: protocol.Partition) -> float:
    """The number of ranks, if one process divides its loss by it, or multiplies it, and just that is wrong then: it may
    stand in the script, or be an option of it. As many micro-batches may be divided by their own number."""
    held, size, steps = list(mine), float(event.world_size), float(max(1, event.backwards))
    for wanted in (size, 1 / size):
        if all(abs(each * wanted - 1) < 1e-3 for each in held):
            numbers = [each for each in event.times if abs(each - wanted) < 1e-6]
            shared = [each for each in event.times if steps > 1 and abs(each * steps - wanted) < 1e-6]
            return size if shared or len(numbers) > (wanted * steps == 1) else 0.0
    return 0.0


def right(event: protocol.Partition, kinds: set[str]) -> str:
    """What a gradient is in which no multiple is wrong, by how its parameters are made."""
    if kinds <= {MEAN}:
        return f"the mean of {_EACH}"
    if event.as_one:
        return f"a multiple of {_EACH}, which the optimizer's own step undoes"
    return reference(event).right if FACTOR in kinds else f"{_EACH}, by shares"


def sums(reading: protocol.Reading) -> list[float]:
    """By backward, what its coefficients add up to."""
    found: dict[int, float] = {}
    for backward, value in zip(reading.backwards, reading.coefficients, strict=True):
        found[backward] = found.get(backward, 0.0) + value
    return [found[each] for each in sorted(found)]
