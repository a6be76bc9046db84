"""What reading the script has found beside what the run has shown: one finding for each code and place."""

from __future__ import annotations

import os
from dataclasses import dataclass

from validate_ddp.findings import SEVERITIES, Finding, Place
from validate_ddp.record.run import Run, Site
from validate_ddp.record.verdict import Observation, Verdict
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.judging import telling_of

READ, RUN = "static", "rehearsal"
CONFIRMED, CONTRADICTED, NOT_OBSERVED, FOUND = "confirmed", "contradicted", "not observed", "found"
_SEEN = {
    CONFIRMED: "by reading the script and by the run",
    CONTRADICTED: "by reading only; the run contradicts it: at this line it saw {0}",
    NOT_OBSERVED: "by reading only; the run has not shown it",
    FOUND: "by the run",
}


@dataclass(frozen=True)
class Reported:
    """A finding, and what it rests on.

    kinds: "static", "rehearsal" or both. said: what the run says of a static finding, "confirmed", "contradicted" or
    "not observed"; "found" for one that reading alone has not. ranks: those that show it. read: what reading alone has
    said, None where it has said nothing. seen: the same in words.
    """

    finding: Finding
    kinds: tuple[str, ...]
    said: str
    ranks: tuple[int, ...] = ()
    read: str | None = None

    @property
    def seen(self) -> str:
        return _SEEN[self.said].format(telling_of(self.finding.code).well)


def joined(
    run: Run, static: tuple[Finding, ...], shown: list[tuple[Finding, Observation]], verdicts: dict[str, Verdict]
) -> tuple[Reported, ...]:
    """All findings, the most severe first; those that the run contradicts last.

    static: what reading the script has found. shown: what the run has, as findings and as the rules gave it.
    """
    found: list[Reported] = []
    matched: set[int] = set()
    for finding, observation in shown:
        numbers = _matching(run, static, observation)
        matched.update(numbers)
        # What reading says of a place that shows the same defect is that defect.
        matched.update(number for each in observation.consequences for number in _matching(run, static, each))
        found += [_both(run, static[number], finding, observation) for number in numbers[:1]] or [
            Reported(finding, (RUN,), FOUND, observation.ranks)
        ]
    for number, finding in enumerate(static):
        if number not in matched:
            found.append(_read_only(run, finding, verdicts))
    return tuple(sorted(_distinct(found), key=_order))


def _distinct(found: list[Reported]) -> list[Reported]:
    """One for each code and place: what both have found may have been found by several observations."""
    held: dict[tuple[str, str, int], Reported] = {}
    for each in found:
        held.setdefault((each.finding.code, each.finding.path, each.finding.line), each)
    return list(held.values())


def _order(reported: Reported) -> tuple[bool, int, str, int, str]:
    finding = reported.finding
    contradicted = reported.said == CONTRADICTED
    return contradicted, -SEVERITIES.index(finding.severity), finding.path, finding.line, finding.code


def _path(run: Run, finding: Finding) -> str:
    return os.path.normpath(os.path.join(run.cwd, finding.path))


def _covers(run: Run, finding: Finding, path: str, line: int) -> bool:
    return finding.cell is None and path == _path(run, finding) and finding.line <= line <= finding.end_line


def _matching(run: Run, static: tuple[Finding, ...], observation: Observation) -> list[int]:
    """The static findings of the observation's code at its line; else at the nearest line on the way to its call; else
    those that name its line among their own evidence; else, of a defect that has no line of its own, in its file."""
    call: Site = observation.call or observation.site
    for frame in (observation.frame, *(each for each in call.frames if not each.library)):
        found = [
            number
            for number, finding in enumerate(static)
            if finding.code == observation.code and _covers(run, finding, frame.path, frame.line)
        ]
        if found:
            return found
    path = os.path.normpath(os.path.join(run.cwd, observation.frame.path))
    coded = [(number, finding) for number, finding in enumerate(static) if finding.code == observation.code]
    naming = [number for number, finding in coded if (path, observation.frame.line) in _named(run, finding)]
    if naming or not telling_of(observation.code).of_the_script:
        return naming
    return [number for number, finding in coded if _path(run, finding) == path]


def _named(run: Run, finding: Finding) -> set[tuple[str, int]]:
    """Paths and lines of a finding's evidence."""
    return {
        (os.path.normpath(os.path.join(run.cwd, place.path)), line)
        for place in finding.evidence
        for line in range(place.span.line, place.span.end_line + 1)
    }


def _both(run: Run, static: Finding, finding: Finding, observation: Observation) -> Reported:
    """Where and how to mend it as the reader says, what it is and how bad as the run shows."""
    evidence = [*static.evidence]
    path = _path(run, finding)
    if not _covers(run, static, path, finding.line) and (path, finding.line) not in _named(run, static):
        evidence.append(_place_of(finding))
    evidence += [place for place in finding.evidence if place not in evidence]
    severity = static.severity if observation.partial else finding.severity
    merged = static._replace(severity=severity, message=finding.message, evidence=tuple(evidence))
    return Reported(merged, (READ, RUN), CONFIRMED, observation.ranks, static.message)


def _place_of(finding: Finding) -> Place:
    from validate_ddp.findings import Span

    span = Span(finding.line, finding.column - 1, finding.end_line, max(finding.end_column - 1, finding.column - 1))
    return Place(finding.path, span, "where the run has shown it")


def _read_only(run: Run, finding: Finding, verdicts: dict[str, Verdict]) -> Reported:
    crashed = _crashed(run, finding)
    if crashed is not None:
        rank, what = crashed
        told = finding._replace(message=f"{finding.message}; rank {rank} failed here with {what}")
        return Reported(told, (READ, RUN), CONFIRMED, (rank,), finding.message)
    verdict = verdicts.get(finding.code)
    clear = verdict is not None and any(_covers(run, finding, path, line) for path, line in verdict.well)
    return Reported(finding, (READ,), CONTRADICTED if clear else NOT_OBSERVED, (), finding.message)


def _crashed(run: Run, finding: Finding) -> tuple[int, str] | None:
    """The rank whose exception is the defect, and the exception's name."""
    for rank, event in run.each(protocol.UncaughtException):
        own = event.own
        if own is not None and event.kind in telling_of(finding.code).crashes:
            if _covers(run, finding, own.path, own.line):
                return rank, event.kind
    return None
