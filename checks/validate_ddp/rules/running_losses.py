"""Losses of a training that one rank tells of, as its own batches gave them."""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.marks import Reduced
from validate_ddp.interpreter.objects import Batch
from validate_ddp.interpreter.ranks import PARTIAL
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Rank, Value, reaching
from validate_ddp.rules.evaluating import is_inside, sharding, summed_over

PUTTING_TOGETHER = ("reduce", "gather")


def told_of_one(program: Program) -> Iterator[tuple[facts.Iterate, list[facts.Report]]]:
    """Each loop that trains, with the places where some ranks alone report a loss of its batches. Not loops in which a
    collective gets something of a batch: that may put together what is told."""
    iterates = program.facts(facts.Iterate)
    reports = [fact for fact in program.facts(facts.Report) if fact.who in PARTIAL and fact.name != "step"]
    if not reports:
        return
    collectives = [c for c in program.facts(facts.Collective) if any(word in c.name for word in PUTTING_TOGETHER)]
    for iterate in iterates:
        if iterate.name != "for" or not program.trains(iterate) or not program.runs_on_many(iterate):
            continue
        if sharding(iterate.loader[0])[0] is None:
            continue  # of ranks that hold parts of a model, all may have the same batches
        if any(is_inside(c, iterate) and _of_batch(c.arguments) for c in collectives):
            continue
        between = [c for c in collectives if c.order > iterate.order]
        told = [
            fact
            for fact in reports
            if _is_own(fact, iterate)
            and not _of_no_number(program, fact)
            and not any(c.order < fact.order and not is_inside(c, iterate) for c in between)
        ]
        if told:
            yield iterate, told


def _of_no_number(program: Program, report: facts.Report) -> bool:
    """Whether it is told only where a loss is not finite: why the training ends, which any rank may say."""
    texts = [program.text(guard.site) for guard in report.guards if not guard.exact]
    return any(check in text for text in texts for check in ("isfinite", "isnan", "isinf"))


def seen_from(report: facts.Report, iterate: facts.Iterate) -> facts.Report:
    """The report as a call in the file of the loop, where a logger of another file makes it; not as the call that a
    library's loop is."""
    calls = [site for site in report.chain if site.path == iterate.site.path and site.span != iterate.site.span]
    return report.moved(calls[-1]) if calls and report.site.path != iterate.site.path else report


def _of_batch(value: Value) -> bool:
    return any(isinstance(part, Batch) for part in reaching(value))


def _is_own(fact: facts.Report, iterate: facts.Iterate) -> bool:
    """Whether what is reported comes from batches of this loop alone, and no collective may have seen it."""
    if not is_inside(fact, iterate) and not summed_over(fact.value, iterate):
        return False
    parts = reaching(fact.value)
    if any(isinstance(part, (Reduced, Rank)) for part in parts):
        return False
    loaders = [loader for part in parts if isinstance(part, Batch) for loader in part.loader]
    return bool(loaders) and all(loader is iterate.loader[0] for loader in loaders)
