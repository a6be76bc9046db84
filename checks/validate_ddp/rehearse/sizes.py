"""One script as if on worlds of several sizes, side by side: ``--as-world 8,64,512,4096``."""

from __future__ import annotations

from collections.abc import Sequence

from validate_ddp.rehearse import at_size, show
from validate_ddp.rehearse.outcome import Judged
from validate_ddp.report.printable import escape

_LEFT_OUT = ("world size", "ranks run alone", "written", "memory of a rank, at least")
_WIDEST = 40


def as_table(judged: Sequence[Judged]) -> str:
    """The observed facts of each size, and the findings with the sizes that show them."""
    table = rows(judged)
    widths = [max(len(row[at]) for row in table) for at in range(len(judged) + 1)]
    lines = []
    for row in table:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join((row[0].ljust(widths[0]), *cells)))
    lines += ["", *found(judged)]
    return "\n".join(escape(line.rstrip()) for line in lines) + "\n"


def rows(judged: Sequence[Judged]) -> list[list[str]]:
    """A row of names, then a fact each; a column for each size."""
    told = [dict(_named(each)) for each in judged]
    names = list(dict.fromkeys(name for rows in told for name in rows))
    return [
        ["as if on", *(f"{each.run.world_size:,}" for each in judged)],
        *([name, *(rows.get(name, "-") for rows in told)] for name in names),
        ["findings", *(str(len(each.findings)) for each in judged)],
    ]


def found(judged: Sequence[Judged]) -> list[str]:
    """What was found, or how a run ended, with the sizes that show it."""
    where: dict[str, list[str]] = {}
    for each in judged:
        size = f"{each.run.world_size:,}"
        if each.failed:
            where.setdefault(show.ended(each), []).append(size)
        for finding in each.findings:
            where.setdefault(f"{finding.severity} {finding.code} at {finding.path}:{finding.line}", []).append(size)
    return [f"{told}, on {', '.join(sizes)} ranks" for told, sizes in where.items()]


def _named(judged: Judged) -> list[tuple[str, str]]:
    """Rows that name a size by themselves have it in their values; memory has a row for each kind."""
    found = []
    for name, value in show.fact_rows(judged):
        if value is not None and name not in _LEFT_OUT:
            found.append((name, str(value)[:_WIDEST]))
    told = judged.facts["at_size"]
    if told is not None and told["memory"] is not None:
        found += [(f"memory of a rank: {name}", at_size.in_words(count)) for name, count in at_size.held(told)]
    return found
