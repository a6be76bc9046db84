"""The three runs of the restart check: what their steps are made from, and how the restarted one lies beside the whole.

Each thing that a step is made from is restored or lost by itself, so it is compared where the restarted run begins.
What a step makes (parameters, states, averages, what is saved) is compared later only while nothing before it differed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from validate_ddp.record.run import NOWHERE, Run, Site
from validate_ddp.record.verdict import Note, Observation, Well
from validate_ddp.record.verdict import Seen as Verdicts
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SAMPLES, RATES, COUNTERS, STATE, RANDOM, AVERAGES, WEIGHTS, FAILS = (
    "samples", "rates", "counters", "state", "random", "averages", "weights", "fails",
)  # fmt: skip
"""Kinds of differences, one a rule."""
BY_ITSELF = "by itself"
"""How a run has ended that is the whole one too."""

Held = dict[str, int]
"""Digests by name."""


class Moment(NamedTuple):
    """What a step is made from. aspects: as of ``protocol.Moment``, with their names."""

    event: protocol.Moment
    aspects: dict[str, Held]

    def held(self, aspect: str) -> Held:
        return self.aspects.get(aspect, {})

    @property
    def fed(self) -> tuple[int, ...]:
        """What it learns from, as digests: batches; what the model was called with where there is none of a loader."""
        return tuple(self.event.batches) or tuple(self.event.inputs)


def moments(run: Run, rank: int) -> list[Moment]:
    """Those of a rank, in their order. Where it has an optimizer of torch's, what changed its parameters before (a load
    after a first backward) was no step."""
    found: list[Moment] = []
    names: dict[str, list[str]] = {}
    for event in run.of(rank, protocol.Moment):
        names |= event.names
        aspects = {
            aspect: dict(zip(names.get(aspect, ()), numbers, strict=False)) for aspect, numbers in event.digests.items()
        }
        found.append(Moment(event, aspects))
    of_torch = [each for each in found if STATE in each.aspects]
    return of_torch or found


def saved_after(run: Run, least: int) -> int | None:
    """The steps after which the first run is to be ended: the first that are at least as many, with a save between them
    and the next step, on all ranks."""
    last = min((len(moments(run, rank)) for rank in run.ranks), default=0)
    times = [event.after for _, event in run.each(protocol.Kept) if least <= event.after < last and event.names]
    return min(times, default=None)


def saves_at_its_end(run: Run) -> bool:
    """Whether something is saved after the last step of all ranks."""
    steps = {len(moments(run, rank)) for rank in run.ranks}
    return any({event.after} == steps and event.names for _, event in run.each(protocol.Kept))


class Runs(NamedTuple):
    """The three runs. base: the steps of the whole run before that which the restarted one goes on with; at: those
    after which the stopped one was ended. ended: by what; "" where the check has ended it."""

    whole: Run
    stopped: Run
    resumed: Run
    at: int
    base: int = 0
    ended: str = ""

    def until(self, rank: int) -> list[Moment]:
        """The steps of the stopped run, and what the next one would be made from: of a run that ended by itself it is
        the whole run's, which has taken the same steps."""
        found = moments(self.stopped, rank)
        return [*found, *moments(self.whole, rank)[self.at : self.at + 1]] if self.ended else found

    def of(self, rank: int) -> tuple[list[Moment], list[Moment]]:
        """The steps of both that stand beside each other."""
        return moments(self.whole, rank)[self.base :], moments(self.resumed, rank)

    @property
    def same_size(self) -> bool:
        return self.whole.ranks == self.resumed.ranks

    def place(self) -> tuple[protocol.Frame | None, protocol.Frame | None]:
        """The line of the restarted run that loads what was saved, and that which saves it; the latter twice where
        nothing is loaded."""
        saves = [event.site for _, event in self.stopped.each(protocol.Kept) if event.after <= self.at]
        saved = own(saves[-1]) if saves else None
        loaded = loads(self, checkpoints(self.stopped)) or loads(self, written(self.stopped))
        return (own(loaded[0]) if loaded else saved), saved


def own(site: Site) -> protocol.Frame | None:
    """The line of the script's."""
    return site.own if site.frames and not site.own.library else None


def written(run: Run) -> set[str]:
    """The paths that a run has written."""
    paths = {event.path for _, event in run.each(protocol.Save, protocol.Write)}
    renamed = {event.path for _, event in run.each(protocol.Renamed)}
    return {path for path in paths | renamed if path}


def checkpoints(run: Run) -> set[str]:
    """The paths of what a run has saved, files or folders, under their last names."""
    renamed = {event.source: event.path for _, event in run.each(protocol.Renamed)}
    return {renamed.get(event.path, event.path) for _, event in run.each(protocol.Kept) if event.path}


def lies_in(path: str, others: Iterable[str]) -> bool:
    """Whether a path is one of these, or lies under it."""
    return any(path == other or path.startswith(other + "/") for other in others)


def loads(runs: Runs, paths: set[str]) -> list[Site]:
    """Where the restarted run reads one of these, or what lies under it, before its first step."""
    found = []
    for rank in runs.resumed.ranks:
        steps = moments(runs.resumed, rank)
        until = steps[0].event.time if steps else float("inf")
        for event in runs.resumed.of(rank, protocol.Read):
            if event.time < until and lies_in(event.path, paths):
                found.append(event.site)
    return found


class Wrong(NamedTuple):
    """A difference. place: its line, where it is not that of its kind."""

    severity: str
    rank: int
    step: int
    text: str
    place: protocol.Frame | None = None


class Unclear(NamedTuple):
    """What cannot be compared, in words."""

    text: str


Seen = Iterator[Wrong | Unclear | None]
"""None: looked at, and right."""


def firsts(runs: Runs) -> list[tuple[int, Moment, Moment]]:
    """By rank, the step that both go on with."""
    found = []
    for rank in runs.resumed.ranks:
        if rank in runs.whole.ranks:
            mine, theirs = runs.of(rank)
            if mine and theirs:
                found.append((rank, mine[0], theirs[0]))
    return found


def learned_alike(runs: Runs, rank: int, step: int) -> bool:
    """Whether both have had the same losses up to a step: random numbers may be others without a defect."""
    pairs = list(zip(*runs.of(rank), strict=False))[: step - runs.base]  # before the first step more may be thrown away
    return all(
        list(mine.event.losses) == list(theirs.event.losses)[-len(mine.event.losses) :] for mine, theirs in pairs
    )


def draws(runs: Runs, rank: int, generator: str) -> bool:
    """Whether numbers are drawn from it between steps that no iteration of a loader lies between."""
    every = moments(runs.whole, rank)
    return any(
        one.held("random").get(generator) != two.held("random").get(generator)
        for one, two in pairwise(every)
        if list(one.event.turns) == list(two.event.turns)
    )


def repeats(runs: Runs) -> str:
    """Where the stopped run is not what the whole one was, in words; "" where it is, up to its end."""
    for rank in runs.whole.ranks:
        one, two = moments(runs.whole, rank), runs.until(rank)
        if len(two) <= runs.at:
            return f"rank {rank} came to {len(two)} steps when it was run again"
        for number, (mine, theirs) in enumerate(zip(one, two, strict=False)):
            parts = [
                aspect for aspect in mine.aspects
                if not aspect.startswith("whole") and mine.aspects[aspect] != theirs.held(aspect)
            ]  # fmt: skip
            if mine.fed != theirs.fed:
                parts.insert(0, "batches")
            if parts:
                return f"two runs of the script differ in step {number + 1} on rank {rank}: in its {parts[0]}"
    return ""


def aligned(runs: Runs) -> tuple[int | None, list[str]]:
    """The steps of the whole run after which the restarted one has its parameters, and the parameters that are others
    although some that were trained are equal; None where there is none with a save."""
    rank, whole = runs.whole.ranks[0], runs.same_size
    first = moments(runs.resumed, rank)[0].held("parameters" if whole else "whole")
    theirs = runs.until(rank)
    saves = {event.after for _, event in runs.stopped.each(protocol.Kept) if 0 < event.after <= runs.at}
    for at in sorted(saves, reverse=True) if whole else [runs.at]:
        if first and theirs[at].held("parameters" if whole else "whole") == first:
            return at, []
    last = theirs[runs.at].held("parameters" if whole else "whole")
    others = [name for name in last if name in first and first[name] != last[name]]
    moved = [
        name for name in last if theirs[0].held("parameters").get(name) != last[name] and first.get(name) == last[name]
    ]
    return (runs.at, others) if moved else (None, [])


def sides(runs: Runs, marked: bool, most: int = 8, ranks: int = 4) -> Iterator[protocol.Side]:
    """Some steps of both, for people. marked: with what differs, which without a defect random numbers may do."""
    for rank in runs.resumed.ranks[:ranks]:
        if rank not in runs.whole.ranks:
            continue
        pairs = list(zip(*runs.of(rank), strict=False))[:most]
        for number, (mine, theirs) in enumerate(pairs):
            rows: list[str] = []
            for name, one, two in _rows(mine, theirs):
                rows += [name, one, two, "differs" if marked and one != two else ""]
            yield protocol.Side(step=runs.base + number + 1, rank=rank, rows=rows)


def _rows(mine: Moment, theirs: Moment) -> Iterator[tuple[str, str, str]]:
    yield "samples", _fed(mine), _fed(theirs)
    rates = [next(iter(each.event.rates), None) for each in (mine, theirs)]
    yield "learning rate", *("" if each is None else f"{each:.6g}" for each in rates)  # type: ignore[misc]
    yield "loss", *(" ".join(f"{each:.6g}" for each in moment.event.losses[:4]) for moment in (mine, theirs))  # type: ignore[misc]
    for aspect, name in (("random", "random state"), ("state", "optimizer state"), ("parameters", "parameters")):
        yield name, *(_short(moment.held(aspect)) for moment in (mine, theirs))  # type: ignore[misc]


def _fed(moment: Moment) -> str:
    samples = moment.event.samples
    if samples:
        return " ".join(map(str, samples[:6])) + (" ..." if len(samples) > 6 else "")
    return _short(dict(enumerate(moment.fed)))  # type: ignore[arg-type]


def _short(held: Held) -> str:
    """Four letters that stand for it."""
    return f"{hash(tuple(sorted(held.values()))) & 0xFFFF:04x}" if held else "none"


def names_in_short(names: Sequence[str], most: int = 3) -> str:
    """Some of them, and how many more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"`{name}`" for name in names[:most]) + more


def told_of(event: protocol.Restart) -> str:
    """The fact, in a line."""
    if not event.compared:
        return f"not compared: {event.why}"
    first_ended = f"ended {event.ended}" if event.ended else "stopped"
    if any(each.kind == FAILS for each in event.differences):
        return f"{first_ended} after step {event.after}; the restart fails"
    ranks = f" on {event.ranks} ranks" if event.ranks else ""
    went = f"{first_ended} after step {event.after}, went on{ranks} for {event.steps} steps"
    wrong = [each for each in event.differences if each.severity != "info"]
    first = min(wrong, key=lambda each: each.step, default=None)
    rest = f"; not compared: {'; '.join(event.unclear)}" if event.unclear else ""
    if first is not None:
        kinds = ", ".join(dict.fromkeys(each.kind for each in wrong))
        return f"{went}: differs from step {first.step} on, rank {first.rank} ({kinds}){rest}"
    return f"{went}: as {'it was saved' if event.ended == BY_ITSELF else 'the whole run'}{rest}"


def seen_of(run: Run, kind: str) -> Verdicts:
    """What the rule of a kind has seen."""
    event = run.restart
    if event is None or not (event.compared or event.differences):
        return
    found = [each for each in event.differences if each.kind == kind]
    for each in found:
        notes = (Note(Site((each.also,)), each.note),) if each.also else ()
        site = Site((each.place,)) if each.place else NOWHERE
        yield Observation(each.severity, site, each.text, notes, (each.rank,))
    if not found and kind in event.looked:
        yield Well()
