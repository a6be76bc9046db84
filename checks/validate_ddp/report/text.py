"""The report for people: each finding with its code frame, its evidence, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from validate_ddp.catalogue import Finding
from validate_ddp.report import Options, counts, plural
from validate_ddp.report.frames import frame
from validate_ddp.report.places import Files, Location, location, shown
from validate_ddp.report.printable import escape, paint

if TYPE_CHECKING:
    from validate_ddp.lint import Outcome


def render(outcome: Outcome, options: Options) -> str:
    """Findings with an empty line after each, then a line that counts them."""
    files = Files(outcome)
    rows: list[str] = []
    for finding in outcome.findings:
        rows += _finding(finding, files, options)
        rows.append("")
    if options.summary:
        rows.append(summary(outcome, options))
    return "".join(row + "\n" for row in rows)


def summary(outcome: Outcome, options: Options) -> str:
    """``3 findings (1 error, 2 warnings) in 12 files, 1 fixable with --fix``."""
    where = plural(outcome.files, "file")
    if not outcome.findings:
        return paint(f"no findings in {where}", "good", options.color)
    names = {"error": "error", "warning": "warning", "info": "info"}
    parts = [
        f"{number} {name}" if name == "info" else plural(number, names[name])
        for name, number in counts(outcome.findings).items()
        if number
    ]
    line = f"{plural(len(outcome.findings), 'finding')} ({', '.join(parts)}) in {where}"
    safe = sum(finding.fix is not None and finding.fix.safe for finding in outcome.findings)
    unsafe = sum(finding.fix is not None and not finding.fix.safe for finding in outcome.findings)
    if safe:
        line += f", {safe} fixable with --fix"
    if unsafe:
        line += f", {unsafe}{' more' if safe else ' fixable'} with --fix --unsafe-fixes"
    return line


def _finding(finding: Finding, files: Files, options: Options) -> list[str]:
    place = location(finding)
    evidence = [(item, files.locate(item.path, item.span)) for item in finding.evidence]
    # One gutter for all frames of a finding, so that their code is aligned. One more line may be shown below.
    last = max(where.end_line + 1 for where in (place, *(where for _, where in evidence)))
    draw = _Drawing(files, options, len(str(last)))
    where = paint(escape(shown(finding.path, place)), "bold", options.color)
    what = paint(f"{finding.severity} {finding.code}", finding.severity, options.color)
    rows = [f"{where}: {what} {paint(finding.name + ':', 'bold', options.color)} {escape(finding.message)}"]
    code = draw.frame(finding.path, place, finding.severity, around=1)
    rows += [draw.bar(), *code] if code else []
    for item, found in evidence:
        rows.append(draw.note("note", f"{item.note or 'see here'} ({shown(item.path, found)})"))
        rows += draw.frame(item.path, found, "dim", around=0)
    if finding.entry and finding.entry != finding.path:
        rows.append(draw.note("note", f"reached from {finding.entry}"))
    if finding.fix is not None:
        flags = "--fix" if finding.fix.safe else "--fix --unsafe-fixes"
        rows.append(draw.note("help", f"{finding.fix.title} ({flags})"))
    if options.derivation:
        rows += [draw.note("because", step) for step in finding.derivation]
        if not finding.confirmed:
            rows.append(draw.note("because", "not confirmed on the concrete syntax"))
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
        return f"{' ' * self.gutter} {paint('=', 'frame', color)} {paint(label + ':', 'bold', color)} {escape(text)}"

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
