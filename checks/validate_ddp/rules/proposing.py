"""Turns the facts that a rule objects to into proposals."""

from __future__ import annotations

from collections.abc import Iterable

from validate_ddp.findings import Fix, Place, Proposal
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.ranks import BY_NAME, PARTIAL, phrase
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Site
from validate_ddp.rules.founding import founded


def place(site: Site, note: str) -> Place:
    """A site as evidence."""
    return Place(site.path, site.span, note)


def kept_apart(fact: Fact) -> list[Place]:
    """The conditions that keep ranks away from ``fact``, as evidence."""
    return [
        place(guard.site, f"from here on: {phrase(guard.who)}{'' if guard.sure else BY_NAME}")
        for guard in fact.guards
        if guard.who in PARTIAL
    ]


def propose(
    program: Program,
    fact: Fact,
    severity: str,
    message: str,
    *,
    evidence: Iterable[Place] = (),
    fix: Fix | None = None,
    rests_on: Iterable[Fact] = (),
    guessed: bool = False,
    on_any: bool = False,
) -> Proposal:
    """A proposal at the place of ``fact``, with the way to it as its derivation.

    rests_on: what else it would be wrong without. guessed: it rests on the name of something unknown. Both may make
    a warning of an error: see ``founding``. on_any: it is wrong on whichever ranks come there.
    """
    from validate_ddp.rules.deriving import derivation

    expects = ("for", "") if isinstance(fact, facts.Iterate) and fact.name == "for" else ("call", "")
    return Proposal(
        code="",
        severity=founded(
            severity, rests_on if on_any else (fact, *rests_on), guessed or program.assumed or program.is_foreign
        ),
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
