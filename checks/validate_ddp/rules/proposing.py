"""Turns the facts that a rule objects to into proposals."""

from __future__ import annotations

from collections.abc import Iterable

from validate_ddp.catalogue import Fix, Place, Proposal
from validate_ddp.program.facts import Fact
from validate_ddp.program.ranks import phrase
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
    """A proposal at the place of ``fact``, with the conditions on the rank around it as evidence."""
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
        derivation=_derivation(program, fact),
    )


def _derivation(program: Program, fact: Fact) -> tuple[str, ...]:
    steps = [f"entry {program.entry}"]
    steps += [
        f"call at {site.path}:{site.span.line}" + (f" in {site.function}()" if site.function else "")
        for site in fact.chain
    ]
    for guard in fact.guards:
        if guard.swallows:
            steps.append(f"try at {guard.site.path}:{guard.site.span.line}: its handler goes on")
            continue
        passed = phrase(guard.who) if guard.who != "all" else "not known to hold"
        steps.append(f"condition at {guard.site.path}:{guard.site.span.line}: {passed}")
    steps += [f"loop at {loop.site.path}:{loop.site.span.line}" for loop in fact.loops]
    steps.append(f"{fact.kind} `{fact.name}` at {fact.site.path}:{fact.site.span.line} on {phrase(fact.who)}")
    return tuple(steps)
