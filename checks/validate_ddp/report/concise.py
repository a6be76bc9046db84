"""One line a finding, for editors and for ``grep``: ``path:line:column: severity code name: message``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validate_ddp.report import Options
from validate_ddp.report.places import location, shown
from validate_ddp.report.printable import escape, named, paint

if TYPE_CHECKING:
    from validate_ddp.lint import Outcome


def render(outcome: Outcome, options: Options) -> str:
    """A line for each finding; the empty string where there is none."""
    rows = []
    for finding in outcome.findings:
        where = paint(named(shown(finding.path, location(finding))), "bold", options.color)
        what = paint(f"{finding.severity} {finding.code}", finding.severity, options.color)
        rows.append(f"{where}: {what} {finding.name}: {escape(finding.message)}\n")
    return "".join(rows)
