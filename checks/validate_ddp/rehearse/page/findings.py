"""A finding on the page: what, where, the line itself, the other places, and what it rests on."""

from __future__ import annotations

from validate_ddp.findings import Finding
from validate_ddp.rehearse.joined import CONFIRMED, CONTRADICTED, Reported
from validate_ddp.rehearse.outcome import Judged
from validate_ddp.rehearse.page.markup import element, text
from validate_ddp.rehearse.show import quoted
from validate_ddp.report.places import Files, Location, location, shown

_AROUND = 2
_MOST = 12
"""Lines of a span that are shown."""


def article(judged: Judged, reported: Reported) -> str:
    """One finding."""
    finding = reported.finding
    files = quoted(judged)
    kind = "contradicted" if reported.said == CONTRADICTED else ""
    rows = [
        f'<article class="{finding.severity} {kind}">',
        f'<h3><span class="word {finding.severity}">{finding.severity}</span> <code>{finding.code}</code> '
        f"{text(finding.name)}</h3>",
        element("p", shown(finding.path, location(finding)), "mono quiet"),
        element("p", finding.message),
        frame(files, finding.path, location(finding)),
    ]
    quoted_already = {(finding.path, finding.line)}
    for place in finding.evidence:
        where = files.locate(place.path, place.span)
        rows.append(element("p", f"{place.note or 'See here'}: {shown(place.path, where)}", "quiet"))
        if (place.path, where.line) not in quoted_already:
            rows.append(frame(files, place.path, where, around=0))
            quoted_already.add((place.path, where.line))
    if finding.fix is not None:
        flags = "--fix" if finding.fix.safe else "--fix --unsafe-fixes"
        rows.append(f"<p>Help: {text(finding.fix.title)} (<code>validate-ddp {flags}</code>)</p>")
    rows.append(_rests_on(judged, reported, finding))
    return "".join(rows) + "</article>"


def _rests_on(judged: Judged, reported: Reported, finding: Finding) -> str:
    tags = []
    if reported.ranks:
        tags.append(f'<span class="tag">rank {", ".join(map(str, reported.ranks))}</span>')
    if judged.run.read is not None:
        kind = "tag both" if reported.said == CONFIRMED else "tag"
        tags.append(f'<span class="{kind}">seen {text(reported.seen)}</span>')
    if reported.read is not None and reported.read != finding.message:
        tags.append(f"<details><summary>What reading alone said</summary>{element('p', reported.read)}</details>")
    return f"<div>{''.join(tags)}</div>"


def frame(files: Files, path: str, place: Location, around: int = _AROUND) -> str:
    """The lines round a place, with the place itself marked; nothing where the file is not at hand."""
    lines = files.lines(path)
    if not 1 <= place.line <= len(lines):
        return ""
    last = min(max(place.end_line, place.line), place.line + _MOST - 1, len(lines))
    top, bottom = max(1, place.line - around), min(len(lines), last + around)
    width = len(str(bottom))
    rows = []
    for number in range(top, bottom + 1):
        line = lines[number - 1].expandtabs(4) if "\t" in lines[number - 1] else lines[number - 1]
        inner = _marked(line, number, place, last) if place.line <= number <= last else text(line)
        rows.append(f'<span class="row"><span class="number">{str(number).rjust(width)}</span>{inner or " "}</span>')
    return f'<code class="frame" tabindex="0">{"".join(rows)}</code>'


def _marked(line: str, number: int, place: Location, last: int) -> str:
    start = place.column - 1 if number == place.line else len(line) - len(line.lstrip())
    end = place.end_column - 1 if number == last == place.end_line else len(line.rstrip())
    start = min(start, len(line))
    end = max(min(end, len(line)), start)
    if start == end:
        return f"<mark>{text(line)}</mark>"
    return f"{text(line[:start])}<mark>{text(line[start:end])}</mark>{text(line[end:])}"
