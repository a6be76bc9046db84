"""Turns the facts of launch files that a rule objects to into proposals."""

from __future__ import annotations

from collections.abc import Iterable

from validate_ddp.findings import Edit, Fix, Place, Proposal, Span
from validate_ddp.launch.records import Launch, Start, Word
from validate_ddp.source.positions import line_starts, offset_of


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


def replaced(launch: Launch, word: Word, new: str) -> Edit | None:
    """Another text in place of a word, within the quotes that it has; None where more than the word stands there."""
    start, end = _offsets(launch, word.span)
    written = launch.text[start:end]
    quote = written[:1] if written[:1] in ("'", '"') else ""
    if written != f"{quote}{word.raw}{quote}" or word.raw != word.only:
        return None
    return Edit("replace", launch.path, word.span, f"{quote}{new}{quote}")


def taken_out(launch: Launch, start: Start, words: list[Word]) -> Edit | None:
    """Words that follow each other, without what parts them from the next one; None where they are not plainly of a
    shell's line: in quotes, or as items of a list, where something else has to go with them."""
    first, last = _offsets(launch, words[0].span)[0], _offsets(launch, words[-1].span)[1]
    if any(launch.text[slice(*_offsets(launch, word.span))] != word.raw for word in words):
        return None
    others = [_offsets(launch, word.span) for word in _words(start) if word not in words]
    before = max((end for _, end in others if end <= first), default=first)
    behind = min((begin for begin, _ in others if begin >= last), default=last)
    if before == first or not _parts_words(launch.text[before:first]):
        return None
    span = words[0].span
    if behind > last and _parts_words(launch.text[last:behind]):
        end = next(word.span for word in _words(start) if _offsets(launch, word.span)[0] == behind)
        return Edit("replace", launch.path, Span(span.line, span.column, end.line, end.column), "")
    ahead = next(word.span for word in _words(start) if _offsets(launch, word.span)[1] == before)
    return Edit("replace", launch.path, Span(ahead.end_line, ahead.end_column, *words[-1].span[2:]), "")


def is_within(edit: Edit, statement: Span) -> bool:
    """Whether a change touches this command alone, and no variable of which others may be made too."""
    return statement[:2] <= edit.span[:2] and edit.span[2:] <= statement[2:]


def _words(start: Start) -> list[Word]:
    given = [word for option in start.options for word in (option.word, option.value) if word is not None]
    return [*start.head, *given, *([start.script] if start.script is not None else []), *start.arguments]


def _offsets(launch: Launch, span: Span) -> tuple[int, int]:
    starts = line_starts(launch.text)
    return (
        offset_of(launch.text, starts, span.line, span.column),
        offset_of(launch.text, starts, span.end_line, span.end_column),
    )


def _parts_words(text: str) -> bool:
    """Whether a shell takes it for what stands between two words of a command."""
    return bool(text) and not text.replace("\\\r\n", " ").replace("\\\n", " ").strip(" \t")
