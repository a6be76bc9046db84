"""Turns proposals into findings: lines and columns as people count them, in a notebook by cell. No LibCST."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from validate_ddp.catalogue import name_of
from validate_ddp.findings import Finding, Proposal
from validate_ddp.source.positions import character_column, lines_of

if TYPE_CHECKING:
    from validate_ddp.source.text import Cell


def as_findings(
    text: str, proposals: Sequence[Proposal], confirmed: Sequence[bool], cells: tuple[Cell, ...] | None
) -> list[Finding]:
    """One finding for each proposal on ``text``; one that is not confirmed has no fix."""
    lines = lines_of(text)
    return [_finding(proposal, sure, lines, cells) for proposal, sure in zip(proposals, confirmed, strict=True)]


def _finding(proposal: Proposal, confirmed: bool, lines: list[str], cells: tuple[Cell, ...] | None) -> Finding:
    span = proposal.span
    number, before = None, 0
    if cells:
        index = max(bisect_right([cell.first_line for cell in cells], span.line) - 1, 0)
        number, before = cells[index].number, cells[index].first_line - 1
    return Finding(
        code=proposal.code,
        name=name_of(proposal.code),
        severity=proposal.severity,
        path=proposal.path,
        line=max(span.line - before, 1),
        column=_column(lines, span.line, span.column),
        end_line=max(span.end_line - before, 1),
        end_column=_column(lines, span.end_line, span.end_column),
        message=proposal.message,
        evidence=proposal.evidence,
        fix=proposal.fix if confirmed else None,
        entry=proposal.entry,
        confirmed=confirmed,
        cell=number,
        derivation=proposal.derivation,
    )


def _column(lines: list[str], line: int, column: int) -> int:
    if not 1 <= line <= len(lines):
        return max(column, 0) + 1
    return character_column(lines[line - 1], column) + 1
