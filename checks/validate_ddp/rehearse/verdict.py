"""What a rule says of a run: violated, held, or not observed."""

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
    better."""

    code: str
    severity: str
    site: Site
    message: str
    notes: tuple[Note, ...] = ()
    ranks: tuple[int, ...] = ()
    call: Site | None = None
    partial: bool = False

    @property
    def frame(self) -> Frame:
        """The line that is reported."""
        return self.site.own


class Verdict(NamedTuple):
    """observed: whether the run has shown what the rule asks about. A rule without findings that has not looked says
    "not observed", never that all is well."""

    observed: bool
    findings: tuple[Observation, ...] = ()

    @property
    def word(self) -> str:
        """``violated``, ``held`` or ``not observed``."""
        if self.findings:
            return "violated"
        return "held" if self.observed else "not observed"


NOT_OBSERVED = Verdict(False)
HELD = Verdict(True)
