"""The report of a rehearsal as one HTML file: it needs no network, no script, and no other file.

Whatever a script is called or says is escaped; and the page forbids itself to run scripts or to load anything.
"""

from __future__ import annotations

from validate_ddp import __version__
from validate_ddp.catalogue import name_of
from validate_ddp.rehearse import show
from validate_ddp.rehearse.joined import CONTRADICTED
from validate_ddp.rehearse.outcome import Judged
from validate_ddp.rehearse.page.findings import article
from validate_ddp.rehearse.page.markup import element, page, text
from validate_ddp.rehearse.page.ranks import calls, times
from validate_ddp.rehearse.page.restart import restarted
from validate_ddp.rehearse.page.samples import coverage, drift
from validate_ddp.report import plural


def as_html(judged: Judged) -> str:
    """The whole page."""
    title = f"Rehearsal of {' '.join(judged.run.plan.get('script') or ('a script',))}"
    sections = [
        ("findings", "Findings", _findings(judged)),
        ("facts", "What was observed", _facts(judged) + coverage(judged.run) + drift(judged)),
        ("ranks", "The ranks side by side", times(judged.run) + calls(judged)),
        ("rules", "Rules", _rules(judged)),
        ("rehearsal", "About this rehearsal", _about(judged)),
    ]
    if judged.run.restart is not None:
        sections.insert(2, ("restart", "After a restart", restarted(judged.run)))
    body = _head(judged, title, sections) + "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{head}</h2>{inner}</section>'
        for name, head, inner in sections
    )
    return page(title, body)


def _head(judged: Judged, title: str, sections: list[tuple[str, str, str]]) -> str:
    run = judged.run
    arguments = " ".join(run.plan.get("arguments") or ())
    where = f"{plural(run.world_size, 'rank')} on CPU, {run.seconds:.1f} s, validate-ddp {__version__}"
    links = "".join(f'<a href="#{name}">{head}</a>' for name, head, _ in sections)
    return (
        f"<header><h1>{text(title)}</h1>"
        + (element("p", f"Arguments: {arguments}", "quiet mono") if arguments else "")
        + element("p", where, "quiet")
        + _verdict(judged)
        + "</header>"
        + f'<nav aria-label="Sections">{links}</nav>'
        + _failure(judged)
    )


def _verdict(judged: Judged) -> str:
    head, kind, cause = show.verdict(judged)
    rows = "".join(element("p", row) for row in (cause, show.counted(judged)) if row)
    return f'<div class="verdict {kind}" role="status"><strong>{text(head[:1].upper() + head[1:])}</strong>{rows}</div>'


def _failure(judged: Judged) -> str:
    rows = ""
    if judged.failed and judged.failure is not None and judged.failure.traceback:
        trace = f"<pre>{text(judged.failure.traceback)}</pre>"
        rows += f"<details open><summary>The script's own traceback</summary>{trace}</details>"
    if judged.positions:
        rows += "<h2>Where the ranks were</h2><pre>" + text("\n".join(judged.positions)) + "</pre>"
    return rows


def _findings(judged: Judged) -> str:
    if not judged.reported:
        return element("p", "None.", "quiet")
    return "".join(article(judged, each) for each in judged.reported if each.said != CONTRADICTED) + _contradicted(
        judged
    )


def _contradicted(judged: Judged) -> str:
    rows = [article(judged, each) for each in judged.reported if each.said == CONTRADICTED]
    if not rows:
        return ""
    return f"<details><summary>{len(rows)} found by reading, contradicted by the run</summary>{''.join(rows)}</details>"


def _facts(judged: Judged) -> str:
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th>'
        + ('<td class="none">not observed</td>' if value is None else f"<td>{text(str(value))}</td>")
        + "</tr>"
        for name, value in show.fact_rows(judged)
    )
    return f'<table class="facts"><caption hidden>Observed facts</caption><tbody>{rows}</tbody></table>'


_WORDS = {"violated": "error", "held": "good", "not observed": "quiet", "not judged": "warning"}


def _rules(judged: Judged) -> str:
    rows = "".join(
        f"<tr><td><code>{code}</code></td><td>{text(name_of(code))}</td>"
        f'<td><span class="word {_WORDS[word]}">{word}</span></td></tr>'
        for code, word in sorted(judged.words.items(), key=lambda item: list(_WORDS).index(item[1]))
    )
    head = '<thead><tr><th scope="col">code</th><th scope="col">rule</th><th scope="col">in this run</th></tr></thead>'
    table = f'<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>'
    return f"<details><summary>{text(show.rules_counted(judged))}</summary>{table}</details>"


def _about(judged: Judged) -> str:
    run = judged.run
    rows = [f"Changed for the rehearsal: {change}." for change in run.shim]
    rows += show.remarks(judged)
    if run.read is None:
        rows.append("The script was not read before it was run.")
    else:
        rows.append(f"The script was read before it was run: {plural(len(run.read), 'finding')}.")
    rows.append(
        "A rehearsal does not see NCCL itself, memory, streams, CUDA graphs, custom kernels, float16 overflow, a "
        "missing .cuda(), or speed."
    )
    return "<ul>" + "".join(element("li", row) for row in rows) + "</ul>"
