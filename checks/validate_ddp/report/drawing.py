"""One finding as people read it: its line, its code frame, its evidence, and what to do."""

from __future__ import annotations

from typing import NamedTuple

from validate_ddp.findings import Finding
from validate_ddp.report import Options
from validate_ddp.report.frames import frame
from validate_ddp.report.places import Files, Location, location, shown
from validate_ddp.report.printable import escape, named, paint


def draw(finding: Finding, files: Files, options: Options, notes: tuple[tuple[str, str], ...] = ()) -> list[str]:
    """The rows of a finding, without line ends. notes: labels and texts to add at its end."""
    place = location(finding)
    evidence = [(item, files.locate(item.path, item.span)) for item in finding.evidence]
    # One gutter for all frames of a finding, so that their code is aligned. One more line may be shown below.
    last = max(where.end_line + 1 for where in (place, *(where for _, where in evidence)))
    hand = _Drawing(files, options, len(str(last)))
    where = paint(named(shown(finding.path, place)), "bold", options.color)
    what = paint(f"{finding.severity} {finding.code}", finding.severity, options.color)
    rows = [f"{where}: {what} {paint(finding.name + ':', 'bold', options.color)} {escape(finding.message)}"]
    code = hand.frame(finding.path, place, finding.severity, around=1)
    rows += [hand.bar(), *code] if code else []
    for item, found in evidence:
        rows.append(hand.note("note", f"{item.note or 'see here'} ({shown(item.path, found)})"))
        rows += hand.frame(item.path, found, "dim", around=0)
    if finding.entry and finding.entry != finding.path:
        rows.append(hand.note("note", f"reached from {finding.entry}"))
    if finding.fix is not None:
        flags = "--fix" if finding.fix.safe else "--fix --unsafe-fixes"
        rows.append(hand.note("help", f"{finding.fix.title} ({flags})"))
    rows += [hand.note(label, text) for label, text in notes]
    if options.derivation:
        steps = [*finding.derivation, *([] if finding.confirmed else ["not confirmed on the concrete syntax"])]
        rows += [hand.note("because" if number == 0 else "", step) for number, step in enumerate(steps)]
    return rows


class _Drawing(NamedTuple):
    """How the parts of one finding are drawn."""

    files: Files
    options: Options
    gutter: int

    def bar(self) -> str:
        return " " * self.gutter + " " + paint("|", "frame", self.options.color)

    def note(self, label: str, text: str) -> str:
        color = self.options.color
        head = paint(label + ":", "bold", color) if label else " " * len("because:")
        return f"{' ' * self.gutter} {paint('=', 'frame', color)} {head} {escape(text)}"

    def frame(self, path: str, place: Location, style: str, around: int) -> list[str]:
        before, last = self.files.bounds(path, place.cell)
        return frame(
            self.files.lines(path)[:last],
            (place.line + before, place.column - 1),
            (place.end_line + before, place.end_column - 1),
            around=around,
            before=before,
            gutter=self.gutter,
            width=self.options.width,
            color=self.options.color,
            style=style,
        )
