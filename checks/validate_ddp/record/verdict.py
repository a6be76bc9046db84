"""What a rule sees in a run, how that is told, and the verdict that comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from validate_ddp.record.events import Frame, Site


class Note(NamedTuple):
    """A second place, and why it matters."""

    site: Site
    text: str


class Observation(NamedTuple):
    """A defect that a run has shown."""

    severity: str
    site: Site
    message: str
    notes: tuple[Note, ...] = ()
    ranks: tuple[int, ...] = ()
    """Those that show it."""
    call: Site | None = None
    """What was called, where ``site`` is a line on the way to it."""
    partial: bool = False
    """The run shows the circumstances of a defect, not that there is one: how bad it is, reading knows better."""
    since: tuple[tuple[int, float], ...] = ()
    """Of ranks that diverge: from when on each of them does something else; ``inf`` where it does nothing more."""
    diverges: bool = True
    """Of such: whether what they call no longer matches from then on."""
    consequences: tuple[Observation, ...] = ()
    """Findings of other rules that come of this one, which its notes tell."""
    code: str = ""
    """The rule's, which ``verdict_of`` writes in."""

    @property
    def frame(self) -> Frame:
        """The line that is reported."""
        return self.site.own


class Well(NamedTuple):
    """Something that a rule has looked at, and that is as it should be. site: where, so that the run contradicts what
    reading says of that line; None where it is at no line in particular. held: whether a rule that has seen it, and
    nothing wrong, has held."""

    site: Site | None = None
    held: bool = True


class Unclear(NamedTuple):
    """Something that a rule has looked at, and that is no defect, nor as it should be. site: the run does not
    contradict what reading says of that line; None where the whole rule has not held for it."""

    site: Site | None = None


Seen = Iterator[Observation | Well | Unclear]
"""What the ``observe(run)`` of a rule sees: all that it looks at, at a line as often as the run comes there."""


class Telling(NamedTuple):
    """How a rule is told of beside others, and beside what reading says: its ``TELLING``. Codes name other rules."""

    well: str = "nothing wrong"
    """What a run has seen where it contradicts reading."""
    once: bool = False
    """One finding tells it all, the first."""
    outranks: tuple[str, ...] = ()
    """What these see at the line of a finding comes of it."""
    silences: tuple[str, ...] = ()
    """These are not judged where there is a finding."""
    diverges_before: tuple[str, ...] = ()
    """Of ranks that diverge, a finding tells more than those of these, and of those that these come before."""
    step_by_step: bool = False
    """It compares ranks step by step, which says nothing any more where they have diverged."""
    clears_beside: tuple[str, ...] = ()
    """It contradicts reading only where one of these has held."""
    crashes: tuple[str, ...] = ()
    """Exceptions that are the defect where they come from its line."""
    of_the_script: bool = False
    """The defect has no line of its own: reading tells of it at one of several calls, a run at the one that it saw."""

    @property
    def others(self) -> tuple[str, ...]:
        """The codes of all rules that it names."""
        return (*self.outranks, *self.silences, *self.diverges_before, *self.clears_beside)


Line = tuple[str, int]
"""Path and line."""


class Verdict(NamedTuple):
    """observed: whether the run has shown what the rule asks about. A rule without findings that has not looked says
    "not observed", never that all is well. in_time: False where the analysis was ended before. well: the lines of which
    the run contradicts what reading says: it has looked there, and has seen nothing but what is as it should be."""

    observed: bool
    findings: tuple[Observation, ...] = ()
    in_time: bool = True
    well: frozenset[Line] = frozenset()

    @property
    def word(self) -> str:
        """``violated``, ``held``, ``not observed`` or ``not judged``."""
        if not self.in_time:
            return "not judged"
        if self.findings:
            return "violated"
        return "held" if self.observed else "not observed"

    def left_with(self, findings: tuple[Observation, ...]) -> Verdict:
        """Without what is another rule's to tell. What was seen there is no proof that all is well."""
        return self._replace(observed=bool(findings), findings=findings)


def verdict_of(code: str, seen: Seen, once: bool = False) -> Verdict:
    """The verdict of what a rule has seen: a finding for each line and each divergence; ``once``: for the whole run."""
    findings: dict[tuple[Line, object], Observation] = {}
    held = unclear = False
    well, wrong = set[Line](), set[Line]()
    for each in seen:
        if isinstance(each, Observation):
            if not (once and findings):
                findings.setdefault((each.site.place, each.since), each._replace(code=code))
            wrong.add(each.site.place)
        elif isinstance(each, Well):
            held = held or each.held
            if each.site is not None:
                well.add(each.site.place)
        elif each.site is None:
            unclear = True
        else:
            wrong.add(each.site.place)
    observed = bool(findings) or (held and not unclear)
    return Verdict(observed, tuple(findings.values()), well=frozenset(well - wrong))


NOT_JUDGED = Verdict(False, in_time=False)
