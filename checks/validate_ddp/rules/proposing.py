"""Turns the facts that a rule objects to into proposals."""

from __future__ import annotations

from collections.abc import Iterable

from validate_ddp.catalogue import Fix, Place, Proposal
from validate_ddp.program.facts import Fact
from validate_ddp.program.trace import Program
from validate_ddp.program.values import Site


def place(site: Site, note: str) -> Place:
    """A site as evidence."""
    return Place(site.path, site.span, note)


def propose(
    program: Program,
    fact: Fact,
    severity: str,
    message: str,
    *,
    evidence: Iterable[Place] = (),
    fix: Fix | None = None,
) -> Proposal:
    """A proposal at the place of ``fact``, with the way to it as its derivation."""
    from validate_ddp.rules.deriving import derivation

    expects = ("for", "") if fact.kind == "iterate" and fact.name == "for" else ("call", "")
    return Proposal(
        code="",
        severity=severity,
        path=fact.site.path,
        span=fact.site.span,
        statement=fact.site.statement,
        message=message,
        expects=expects,
        evidence=tuple(evidence),
        fix=fix,
        entry=program.entry,
        derivation=derivation(program, fact),
    )
