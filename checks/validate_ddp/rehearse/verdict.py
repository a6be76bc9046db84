"""What a rule says of a run: violated, held, not observed, or nothing, for want of time."""

from __future__ import annotations

from typing import NamedTuple

from validate_ddp.rehearse.run import Frame, Site


class Note(NamedTuple):
    """A second place, and why it matters."""

    site: Site
    text: str


class Observation(NamedTuple):
    """A defect that a run has shown. ranks: those that show it. call: what was called, where ``site`` is a line on the
    way to it. partial: the run shows the circumstances of a defect, not that there is one: how bad it is, reading knows
    better. since: of a defect by which ranks part, from when on each of them does something else; ``inf`` where it does
    nothing more. parts: whether what they call no longer matches from then on. consequences: findings of other rules
    that come of this one, which its notes tell."""

    code: str
    severity: str
    site: Site
    message: str
    notes: tuple[Note, ...] = ()
    ranks: tuple[int, ...] = ()
    call: Site | None = None
    partial: bool = False
    since: tuple[tuple[int, float], ...] = ()
    parts: bool = True
    consequences: tuple[Observation, ...] = ()

    @property
    def frame(self) -> Frame:
        """The line that is reported."""
        return self.site.own


class Verdict(NamedTuple):
    """observed: whether the run has shown what the rule asks about. A rule without findings that has not looked says
    "not observed", never that all is well. in_time: False where the analysis was ended before."""

    observed: bool
    findings: tuple[Observation, ...] = ()
    in_time: bool = True

    @property
    def word(self) -> str:
        """``violated``, ``held``, ``not observed`` or ``not judged``."""
        if not self.in_time:
            return "not judged"
        if self.findings:
            return "violated"
        return "held" if self.observed else "not observed"


NOT_OBSERVED = Verdict(False)
HELD = Verdict(True)
NOT_JUDGED = Verdict(False, in_time=False)
