"""The report of a rehearsal for machines: JSON in the schema of ``rehearse/schema.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from validate_ddp import __version__
from validate_ddp.catalogue import name_of
from validate_ddp.rehearse.joined import Reported
from validate_ddp.rehearse.outcome import Judged

SCHEMA = 1
"""Rises when a consumer of the former number could break; new keys alone do not raise it."""


def as_json(judged: Judged) -> str:
    """One JSON object."""
    return json.dumps(_document(judged), indent=2, default=str) + "\n"


def sizes_as_json(judged: Sequence[Judged]) -> str:
    """One object, with such an object for each size of the world."""
    document = {"schema": SCHEMA, "sizes": [_document(each) for each in judged]}
    return json.dumps(document, indent=2, default=str) + "\n"


def _document(judged: Judged) -> dict[str, object]:
    run, failure = judged.run, judged.failure
    return {
        "schema": SCHEMA,
        "tool": {"name": "validate-ddp", "version": __version__},
        "plan": run.plan,
        "outcome": run.outcome,
        "seconds": run.seconds,
        "failure": None if failure is None else failure.__dict__,
        "positions": list(judged.positions),
        "findings": [_finding_as_json(each) for each in judged.reported],
        "static_check": run.read is not None,
        "facts": judged.facts,
        "rules": {code: {"name": name_of(code), "verdict": word} for code, word in judged.words.items()},
        "faults": [{"where": each.where, "message": each.message} for each in run.faults],
    }


def _finding_as_json(reported: Reported) -> dict[str, object]:
    finding = reported.finding
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "evidence_kinds": list(reported.kinds),
        "run_says": reported.said,
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "end": {"line": finding.end_line, "column": finding.end_column},
        "message": finding.message,
        "static_message": reported.read,
        "ranks": list(reported.ranks),
        "evidence": [{"path": each.path, "line": each.span.line, "note": each.note} for each in finding.evidence],
        "fix": None if finding.fix is None else {"title": finding.fix.title, "safe": finding.fix.safe},
    }
