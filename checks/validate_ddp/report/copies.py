"""One statement that stands in several files is told once to people, with its places: they mend it once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from validate_ddp.findings import Finding
from validate_ddp.report.places import Files, location, shown

_AROUND = 2
"""Lines above and below that are alike too: two scripts may have a short statement in common by chance."""
_FEWEST = 3
"""Files with the statement, from which on it is told once: a pair is read as fast as a reference."""
_MOST_TOLD = 20


class Together(NamedTuple):
    """A finding, and those of other files that say the same of a copy of its statement."""

    first: Finding
    copies: tuple[Finding, ...] = ()

    def notes(self) -> tuple[tuple[str, str], ...]:
        """Where the copies lie, as a note of a report."""
        if not self.copies:
            return ()
        places = [shown(copy.path, location(copy)) for copy in self.copies[:_MOST_TOLD]]
        more = f", and {len(self.copies) - _MOST_TOLD} more" if len(self.copies) > _MOST_TOLD else ""
        return (("note", f"a copy of this in {len(self.copies)} other files: {', '.join(places)}{more}"),)


def together(findings: Sequence[Finding], files: Files) -> Iterator[Together]:
    """The findings in their order, copies of one with the first."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(_said(finding, files), []).append(finding)
    copied = {}
    for group in groups.values():
        if len({finding.path for finding in group}) == len(group) >= _FEWEST:
            copied.update(dict.fromkeys(group, group))
    for finding in findings:
        group = copied.get(finding, [finding])
        if group[0] is finding:
            yield Together(finding, tuple(group[1:]))


def _said(finding: Finding, files: Files) -> tuple[object, ...]:
    """What is said of which text: of a notebook, and of what cannot be quoted, each is apart."""
    lines = files.lines(finding.path)
    if finding.cell is not None or not lines:
        return (finding,)
    around = lines[max(0, finding.line - 1 - _AROUND) : finding.end_line + _AROUND]
    return (finding.code, finding.severity, finding.message, *(line.strip() for line in around))
