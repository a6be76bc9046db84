"""What the catalogue says of a rule, and the table of all rules."""

from __future__ import annotations

from validate_ddp.catalogue import Rule
from validate_ddp.report.printable import paint

_EVIDENCE = {"S": "static", "L": "launch files", "R": "rehearsal"}


def heading(rule: Rule) -> str:
    """The rule's facts in two lines of Markdown."""
    evidence = ", ".join(_EVIDENCE[letter] for letter in rule.evidence)
    fix = "no fix" if rule.fix == "-" else f"{rule.fix} fix"
    return f"# {rule.code} {rule.name}\n\n{' or '.join(rule.severities)} - seen by: {evidence} - {fix}\n"


def explain(rule: Rule) -> str:
    """The rule's documentation as Markdown."""
    return f"{heading(rule)}\n{rule.documentation.strip()}\n"


def explain_on_terminal(rule: Rule) -> None:
    """Prints the documentation, rendered, on the terminal of standard output."""
    from rich.console import Console
    from rich.markdown import Markdown

    Console(highlight=False).print(Markdown(explain(rule)))


def table(rules: list[Rule], color: bool) -> str:
    """One line a rule: code, name, severities, fix and summary."""
    width = max((len(rule.name) for rule in rules), default=0)
    lines = []
    for rule in rules:
        usual = rule.severities[0]
        severity = paint("/".join(rule.severities).ljust(13), usual, color)
        fix = {"-": "-     ", "safe": "safe  ", "unsafe": "unsafe"}[rule.fix]
        lines.append(f"{rule.code}  {rule.name:<{width}}  {severity}  {fix}  {rule.summary}\n")
    return "".join(lines)


def as_json(rules: list[Rule]) -> str:
    """The rules as a JSON list, with their whole documentation."""
    import json

    fields = ("code", "name", "severities", "evidence", "fix", "summary", "documentation")
    return json.dumps([{field: getattr(rule, field) for field in fields} for rule in rules], indent=2) + "\n"
