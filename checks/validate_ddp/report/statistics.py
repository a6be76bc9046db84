"""Counts of findings a rule, in place of the findings themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from validate_ddp.findings import SEVERITIES
from validate_ddp.report import Options, plural
from validate_ddp.report.printable import paint

if TYPE_CHECKING:
    from validate_ddp.lint import Outcome


class Row(NamedTuple):
    """How often one rule was found with one severity. fixable: how many of them have a safe fix."""

    number: int
    severity: str
    code: str
    name: str
    fixable: int


def rows(outcome: Outcome) -> list[Row]:
    """One row a rule and severity: the most frequent first, and of equally frequent ones the most severe."""
    table: dict[tuple[str, str], Row] = {}
    for finding in outcome.findings:
        key = finding.code, finding.severity
        row = table.get(key) or Row(0, finding.severity, finding.code, finding.name, 0)
        fixable = finding.fix is not None and finding.fix.safe
        table[key] = row._replace(number=row.number + 1, fixable=row.fixable + fixable)
    return sorted(table.values(), key=lambda row: (-row.number, -SEVERITIES.index(row.severity), row.code))


def render(outcome: Outcome, options: Options) -> str:
    """The table, aligned; one line where there is no finding."""
    table = rows(outcome)
    if not table:
        return paint(f"no findings in {plural(outcome.files, 'file')}", "good", options.color) + "\n"
    width = len(str(table[0].number))
    lines = []
    for row in table:
        severity = paint(row.severity.ljust(7), row.severity, options.color)
        fixable = f" ({row.fixable} fixable)" if row.fixable else ""
        lines.append(f"{row.number:>{width}}  {severity}  {row.code}  {row.name}{fixable}\n")
    return "".join(lines)


def render_json(outcome: Outcome) -> str:
    """The table as a JSON list of objects: code, name, severity, count, fixable."""
    import json

    objects = [
        {"code": row.code, "name": row.name, "severity": row.severity, "count": row.number, "fixable": row.fixable}
        for row in rows(outcome)
    ]
    return json.dumps(objects, indent=2) + "\n"
