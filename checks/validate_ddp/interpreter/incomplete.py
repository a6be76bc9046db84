"""What is told of a walk that did not look at everything, and what becomes of its findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validate_ddp.findings import INFO, Place, Proposal

if TYPE_CHECKING:
    from validate_ddp.interpreter.trace import Program

CODE = "DDP004"


def told(program: Program) -> Proposal | None:
    """That part of the program was not looked at, at the statement of the script that leads there."""
    stop = program.stop
    if stop is None:
        return None
    above, site = stop.above, stop.site
    return Proposal(
        code=CODE,
        severity=INFO,
        path=above.path,
        span=above.span,
        statement=above.span,
        message=f"not all of this script's program was looked at: {stop.why}",
        expects=("place", ""),
        evidence=(Place(site.path, site.span, "the walk stopped here"),),
        entry=program.entry,
    )


def weakened(proposals: list[Proposal], certain: list[Proposal]) -> list[Proposal]:
    """Proposals on all facts of a walk that stopped, as notes where they are not also made without its open part."""
    known = {(proposal.code, proposal.path, proposal.span) for proposal in certain}
    step = "the walk stopped in a branch or loop around it (DDP004): what follows there may put this right"
    return [
        proposal
        if (proposal.code, proposal.path, proposal.span) in known
        else proposal._replace(severity=INFO, fix=None, derivation=(*proposal.derivation, step))
        for proposal in proposals
    ]
