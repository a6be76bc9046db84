"""Workflow commands of GitHub Actions: each finding becomes an annotation on the pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validate_ddp.findings import Finding
from validate_ddp.report import Options
from validate_ddp.report.places import location, shown
from validate_ddp.report.printable import escape

if TYPE_CHECKING:
    from validate_ddp.lint import Outcome

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def render(outcome: Outcome, options: Options) -> str:
    """A command for each finding; the empty string where there is none."""
    return "".join(_command(finding) + "\n" for finding in outcome.findings)


def _command(finding: Finding) -> str:
    place = location(finding)
    properties = {
        "title": f"validate-ddp ({finding.code} {finding.name})",
        "file": finding.path,
        # GitHub counts lines of the file, and those of a notebook are lines of JSON: its findings go to the first one.
        "line": str(place.line if place.cell is None else 1),
    }
    if place.cell is None:
        properties["endLine"] = str(place.end_line)
        if place.line == place.end_line:  # GitHub refuses columns over several lines
            properties["col"] = str(place.column)
            properties["endColumn"] = str(place.end_column)
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    message = f"{shown(finding.path, place)}: {finding.code} {finding.name}: {finding.message}"
    return f"::{_COMMANDS[finding.severity]} {listed}::{_data(message)}"


def _data(text: str) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return escape(text)


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
