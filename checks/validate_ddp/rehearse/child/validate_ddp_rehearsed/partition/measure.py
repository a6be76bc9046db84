"""The last process of the check: coordinates of all gradients that were kept, and what they are made of."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Handed
from .acts import GRADIENT, LOSS, OUTPUT, WORDS
from .gradients import FOREIGN
from .own import beside, differing
from .readout import MEAN, SAME, TOLERANCE, Columns, Group, Vectors, apart, readout
from .tape import Recorded, close, load, path, summary

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from torch import Tensor

    from .begin import Part

ELSEWHERE = 0.05
"""Share of an update that is another, from which on it is told: of one that rounds to few bits it is a hundredth."""
Gradients = dict[str, "Tensor"]
_PIECE = 1 << 20
"""Numbers of a parameter of which all gradients are held at once."""


def measure(torch: ModuleType, part: Part) -> protocol.Partition:
    """Local. Reads what ranks and references have left in the folder of the check."""
    torch.set_num_threads(1)
    folder, tapes = part["folder"], part["tapes"]
    ranks = [load(torch, folder, rank) for rank in range(part["size"])]
    firsts = sorted(set(tapes))
    ones = [load(torch, folder, rank, "one") for rank in firsts]
    others = {
        role: load(torch, folder, 0, role)
        for role in ("union", "dup", "again", "copies")
        if all(os.path.exists(path(folder, role, rank)) for rank in range(part["size"] if role == "dup" else 1))
    }
    dups = [load(torch, folder, rank, "dup") for rank in range(part["size"])] if "dup" in others else []
    kept = _of_each_rank(torch, ranks, True) if ones[0]["dealt"] else set[str]()
    told = protocol.Partition(
        compared=True, float64=part["float64"], world_size=part["size"], tapes=tapes,
        backwards=max(each["backwards"] // each["spread"] for each in ones),
        spread=any(each["spread"] > 1 for each in ones), readings=[], unnamed=0, parameters=0,
        own=[], norms=[], union=[] if "union" in others else None, dup=[] if "dup" in others else None, repeats=True,
        apart=_apart_on_one_tape(dups, tapes, kept) if dups else None,
        averages=any(each["averages"] for each in ranks), exchanges=any(each["exchanges"] for each in ranks),
        deals=all(each["deals"] for each in ranks), times=ones[0]["times"],
    )  # fmt: skip
    for number in range(min(len(each["moments"]) for each in (*ranks, *ones))):
        _Moment(torch, part, number, ranks, ones, others).tell(told)
    return told


def _apart_on_one_tape(ranks: list[Recorded], tapes: list[int], kept: set[str]) -> str:
    """In what ranks differ that are given one tape, in words; "" where they do the same. Ranks that have one tape
    anyway may share the work on it: what they learn is compared with what those in their place do on other tapes.
    kept: what each rank has of its own, as its experts."""

    def stepped(rank: Recorded) -> list[dict[str, Handed]]:
        return [{name: summary(each) for name, each in held["gradients"].items()} for held in rank["moments"]]

    places = [tapes[:rank].count(tape) for rank, tape in enumerate(tapes)]
    alike = [(ranks[0], each) for each in ranks[1:]]
    in_place = [(ranks[places.index(place)], each) for place, each in zip(places, ranks, strict=True)]
    for kind, words in WORDS.items():
        pairs = alike if kind in (OUTPUT, LOSS) else in_place
        if not all(close(one["acts"][kind], other["acts"][kind]) for one, other in pairs):
            return words
    for one, other in in_place:
        for mine, theirs in zip(stepped(one), stepped(other), strict=False):
            shared = [
                name for name in mine if name in theirs and name not in kept
            ]  # an optimizer may hold what is its rank's
            if not close([mine[name] for name in shared], [theirs[name] for name in shared]):
                return GRADIENT
    return ""


def _of_each_rank(torch: ModuleType, ranks: list[Recorded], dealt: bool) -> set[str]:
    """Parameters that start apart: each rank has its own, as of its experts, and is to learn it from its own part.
    dealt: whether one process holds what lies on several ranks."""
    found = differing(torch, [each["weights"] for each in ranks])
    return beside(found, ranks[0]["weights"]) if dealt else found


def _changed_alike(changes: list[dict[str, Handed]]) -> list[str]:
    """The parameters that a step of the script's own has changed by the same everywhere."""
    return [
        name for name, change in changes[0].items() if all(close([change], [each.get(name)]) for each in changes[1:])
    ]


def otherwise(one: Tensor, other: Tensor, grad: Tensor, other_grad: Tensor, float64: bool) -> float:
    """Which share of an update lies beside the direction of another of the same gradient; 0 where the gradients differ.

    Where a gradient is nothing but rounding, an optimizer that divides by its size may go either way.
    """
    least = float(grad.abs().max()) * (1e-9 if float64 else 1e-4)
    if one.shape != other.shape or float((grad - other_grad).abs().max()) > least:
        return 0.0
    counts = grad.abs() > least
    mine, theirs = one[counts].double(), other[counts].double()
    sizes = float(mine.norm()), float(theirs.norm())
    if not all(map(math.isfinite, sizes)) or not all(sizes):
        return 0.0
    cosine = float((mine / sizes[0] * (theirs / sizes[1])).sum())
    return float(max(0.0, 1 - cosine * abs(cosine)) ** 0.5)


def updates_apart(one: dict[str, Handed], other: dict[str, Handed], names: set[str], float64: bool) -> dict[str, float]:
    """By name, which share of an update of the same gradient has another direction; where it is enough to be told."""
    found = {}
    for name in sorted(names & one["updates"].keys() & other["updates"].keys()):
        grads = one["gradients"].get(name), other["gradients"].get(name)
        if grads[0] is None or grads[1] is None:
            continue
        share = otherwise(one["updates"][name], other["updates"][name], *grads, float64)
        if share > ELSEWHERE:
            found[name] = share
    return found


class _Moment:
    """The first step of one optimizer."""

    def __init__(
        self, torch: ModuleType, part: Part, number: int, ranks: list[Recorded], ones: list[Recorded],
        others: dict[str, Recorded],
    ) -> None:  # fmt: skip
        self.torch, self.part, self.number = torch, part, number
        self.float64 = part["float64"]
        firsts = sorted(set(part["tapes"]))
        self.of_rank = [firsts.index(first) for first in part["tapes"]]
        shares = [part["tapes"].count(first) / part["size"] for first in firsts]
        self.ones = [each["moments"][number] for each in ones]
        self.scales: list[float] = []
        columns = [self._columns(one, each["spread"]) for one, each in zip(self.ones, ones, strict=True)]
        self.columns = Columns(
            [tape for tape, held in enumerate(columns) for _ in held],
            [backward for held in columns for backward in range(len(held))],
            shares,
        )
        self.held: list[Gradients] = [each for held in columns for each in held]
        targets = self.ranks = [each["moments"][number] for each in ranks]
        self.targets: list[Gradients] = [each["gradients"] for each in targets]
        self.others = {}
        for role, each in others.items():
            if len(each["moments"]) > number:
                self.others[role] = len(self.targets)
                self.targets.append(each["moments"][number]["gradients"])
        self.dup = others["dup"]["moments"][number] if "dup" in self.others else None
        self.unions, self.agains = (
            [others[role]["moments"][number]] if role in self.others else [] for role in ("union", "again")
        )
        if "again" in self.others:
            self.others["one"] = len(self.targets)
            self.targets.append(self.ones[0]["gradients"])
        self.several = any(name.startswith("1:") for each in ranks for name in each["weights"])
        self.own = _of_each_rank(torch, ranks, ones[0]["dealt"]) | {
            name for one in self.ones for name in one["held"] if name not in ranks[0]["weights"]
        }
        self.unnamed = max(each["unnamed"] for each in targets)

    def _columns(self, one: dict[str, Handed], spread: int) -> list[Gradients]:
        """What each backward of one process has added, in the measure of the gradient that it is given in the end. Of
        one that does the backwards of all ranks: those that are the rank's, as often; nothing where they are not kept
        apart."""
        final, parts = one["gradients"], one["columns"]
        numbers = sorted({number for held in parts.values() for number in held})
        if not final or (numbers == [FOREIGN] and spread == 1):  # of no model, or of the global batch at once
            return [final]
        columns = [{name: held[number] for name, held in parts.items() if number in held} for number in numbers]
        for name, grad in final.items():
            whole = sum(each[name] for each in columns if name in each)
            if not isinstance(whole, self.torch.Tensor):
                return [final] if spread == 1 else []
            size = float(whole.double().square().sum())
            factor = float((whole.double() * grad.double()).sum()) / size if size else 1.0
            if float((grad - factor * whole).norm()) > TOLERANCE[self.float64] * float(grad.norm()) + 1e-300:
                return [final] if spread == 1 else []
            if size:
                self.scales.append(factor)
            for each in columns:
                if name in each:
                    each[name] = each[name] * factor * spread
        return [each for number, each in zip(numbers, columns, strict=True) if number != FOREIGN]

    def parameters(self) -> list[Vectors]:
        """Of each parameter that has a gradient somewhere."""
        vectors = [*self.held, *self.targets]
        names = dict.fromkeys(name for each in vectors for name in each if name not in self.own)
        return [self._coordinates(name, [each.get(name) for each in vectors]) for name in names]

    def _coordinates(self, name: str, grads: list[Tensor | None]) -> Vectors:
        """By an orthonormal basis of what they span, a piece of the parameter after the other."""
        torch = self.torch
        flat = [None if each is None else each.reshape(-1) for each in grads]
        size = max(each.numel() for each in flat if each is not None)
        found = torch.zeros(0, len(flat), dtype=torch.float64)
        for begin in range(0, size, _PIECE):
            zeros = torch.zeros(min(_PIECE, size - begin), dtype=torch.float64)
            piece = [zeros if each is None else each[begin : begin + _PIECE].double() for each in flat]
            found = torch.linalg.qr(torch.cat([found, torch.stack(piece, 1)]), mode="r").R
        return Vectors(name, size, found.T.tolist())

    def tell(self, told: protocol.Partition) -> None:
        """Adds what it has found."""
        parameters = self.parameters()
        told.parameters += len(parameters)
        if not self.held:
            told.compared, told.why = False, "one process does the backwards of all ranks, which are not kept apart"
            return
        if not all(math.isfinite(value) for each in parameters for row in each.rows for value in row):
            told.compared, told.why = False, "the gradients of the first step are not finite"
        most, least = max(self.scales, default=1.0), min(self.scales, default=1.0)
        told.scaled = told.scaled or most - least > SAME[self.float64] * abs(most)
        told.scale = most
        rates = self.ranks[0]["rate"], self.ones[0]["rate"]
        told.rate = rates[0] / rates[1] if rates[1] else 1.0
        told.norms = [*told.norms, *self._norms()]
        told.unnamed += self.unnamed
        told.alike = [*told.alike, *map(self._shown, _changed_alike([each["changes"] for each in self.ranks]))]
        if self.dup is not None:
            both = [self.ones[0]["changes"], self.dup["changes"]]
            told.as_one = [*told.as_one, *map(self._shown, _changed_alike(both))]
        moved = self._moved()
        if moved:
            told.moved, told.mover = [*told.moved, *map(self._shown, moved)], str(self.ranks[0]["kind"])
            told.moved_by = max(told.moved_by, *moved.values())
        told.own = sorted({*told.own, *map(self._shown, self.own)})
        readings = list(told.readings)
        for rank in range(self.part["size"]):
            own = self.of_rank[rank]
            for group in readout(self._stepped(parameters, rank), self.columns, rank, own, self.float64):
                readings.append(self._reading("rank", rank, group))
        if "union" in self.others:
            for group in readout(parameters, self.columns, self.others["union"], -1, self.float64):
                readings.append(self._reading("union", 0, group))
            told.union = [*(told.union or ()), *self._apart(parameters, range(self.part["size"]), self.others["union"])]
        first = [float(tape == 0) for tape in range(len(self.columns.shares))]
        alone = self.columns._replace(shares=first)
        if "copies" in self.others:
            for group in readout(parameters, alone, self.others["copies"], -1, self.float64):
                readings.append(self._reading("copies", 0, group))
        if "dup" in self.others:
            groups = readout(self._stepped(parameters, 0), alone, self.others["dup"], -1, self.float64)
            told.dup = [*(told.dup or ()), *(name for each in groups if each.kind != MEAN for name in each.names)]
            readings += [self._reading("dup", 0, group) for group in groups]
        if "again" in self.others:
            told.repeats = told.repeats and not self._apart(parameters, [self.others["one"]], self.others["again"])
        told.readings = readings

    def _moved(self) -> dict[str, float]:
        """The parameters that a step of the script's own moves otherwise than in one process, though it has the same
        settings and is given the same gradient: how much of the way is another. How far it goes is left to it."""
        alike = {*_changed_alike([each["changes"] for each in self.ranks])} - self.own
        found: dict[str, float] = {}
        # Of several tapes the first is no step's: a step that reduces begins with one process's gradient too.
        same = self.ones if len(self.ones) == 1 else []
        for one in (*same, *self.unions):
            if one["settings"] == self.ranks[0]["settings"]:
                found.update(updates_apart(one, self.ranks[0], alike, self.float64))
        for again in self.agains:
            for name in updates_apart(self.ones[0], again, alike, self.float64):
                found.pop(name, None)
        return found

    def _stepped(self, parameters: list[Vectors], rank: int) -> list[Vectors]:
        """Those of the parameters that a rank's optimizer holds: ranks may share them out, and hand them on."""
        return [each for each in parameters if each.name in self.ranks[rank]["held"]]

    def _norms(self) -> list[float]:
        """What clipping on the ranks took for the norm, as shares of the whole; where one process takes the whole."""

        def shares(moment: dict[str, Handed]) -> list[float]:
            found = []
            for clip in moment["clips"]:
                held = [moment["gradients"][name] for name in clip["names"] if name in moment["gradients"]]
                whole = sum(float(each.double().square().sum()) for each in held) ** 0.5
                found += [clip["norm"] / whole] if whole else []
            return found

        if any(abs(share - 1) > SAME[self.float64] for one in self.ones for share in shares(one)):
            return []
        return [share for moment in self.ranks for share in shares(moment)]

    def _apart(self, parameters: list[Vectors], targets: Iterable[int], other: int) -> list[str]:
        found: dict[str, None] = {}
        for target in targets:
            held = self._stepped(parameters, target) if target < len(self.ranks) else parameters
            found.update(dict.fromkeys(apart(held, len(self.columns.tapes), target, other, self.float64)))
        return list(found)

    def _shown(self, name: str) -> str:
        """As people call it; the number of the model only where there are several."""
        number, _, rest = name.partition(":")
        return f"model {int(number) + 1}: {rest}" if self.several else rest

    def _reading(self, target: str, rank: int, group: Group) -> protocol.Reading:
        return protocol.Reading(
            optimizer=self.number, target=target, rank=rank, kind=group.kind, factor=group.factor,
            coefficients=list(group.coefficients), residual=group.residual,
            names=[self._shown(name) for name in group.names], tapes=list(self.columns.tapes),
            backwards=list(self.columns.backwards),
        )  # fmt: skip
