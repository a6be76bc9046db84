"""The report for people: each finding with its code frame, its evidence, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validate_ddp.catalogue import Finding, Place
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
    where = paint(escape(shown(finding.path, place)), "bold", options.color)
    what = paint(f"{finding.severity} {finding.code}", finding.severity, options.color)
    rows = [f"{where}: {what} {paint(finding.name + ':', 'bold', options.color)} {escape(finding.message)}"]
    rows += _frame(finding.path, place, files, options, finding.severity, around=1)
    for evidence in finding.evidence:
        rows += _evidence(evidence, files, options)
    if finding.entry and finding.entry != finding.path:
        rows.append(_note("note", f"reached from {finding.entry}", options))
    if finding.fix is not None:
        flags = "--fix" if finding.fix.safe else "--fix --unsafe-fixes"
        rows.append(_note("help", f"{finding.fix.title} ({flags})", options))
    if options.derivation:
        rows += [_note("because", step, options) for step in finding.derivation]
        if not finding.confirmed:
            rows.append(_note("because", "not confirmed on the concrete syntax", options))
    return rows


def _evidence(evidence: Place, files: Files, options: Options) -> list[str]:
    place = files.locate(evidence.path, evidence.span)
    where = escape(shown(evidence.path, place))
    rows = [_note("note", f"{evidence.note or 'see here'} ({where})", options, escaped=True)]
    return rows + _frame(evidence.path, place, files, options, "dim", around=0)


def _frame(path: str, place: Location, files: Files, options: Options, style: str, around: int) -> list[str]:
    before = files.first_line(path, place.cell) - 1
    return frame(
        files.lines(path),
        (place.line + before, place.column - 1),
        (place.end_line + before, place.end_column - 1),
        around=around,
        number_from=1 - before,
        width=options.width,
        color=options.color,
        style=style,
    )


def _note(label: str, text: str, options: Options, escaped: bool = False) -> str:
    text = text if escaped else escape(text)
    return f"  {paint('=', 'frame', options.color)} {paint(label + ':', 'bold', options.color)} {text}"
