"""Turns the facts of launch files that a rule objects to into proposals."""

from __future__ import annotations

from collections.abc import Iterable

from validate_ddp.findings import Fix, Place, Proposal, Span
from validate_ddp.launch.records import Launch, Word


def propose(
    launch: Launch,
    span: Span,
    statement: Span,
    severity: str,
    message: str,
    *,
    evidence: Iterable[Place] = (),
    fix: Fix | None = None,
) -> Proposal:
    """A proposal at a place of a launch file. statement: the command, in which a comment silences it."""
    first, last = min(span, statement), max(span, statement, key=lambda each: (each.end_line, each.end_column))
    held = Span(first.line, first.column, last.end_line, last.end_column)
    # A definition far above the command: comments between the two silence nothing.
    if not (statement.line <= span.line <= statement.end_line):
        held = span
    return Proposal("", severity, launch.path, span, held, message, ("place", ""), tuple(evidence), fix, launch.path)


def place(launch: Launch, word: Word | Span, note: str) -> Place:
    """A word of the file as evidence."""
    return Place(launch.path, word if isinstance(word, Span) else word.span, note)


def shown(text: str) -> str:
    """What is written, short enough for a message."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
