"""Where a decision ends the training of the rank that takes it: at once, or by a counter or flag that it sets."""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Loop
from validate_ddp.interpreter.surroundings import call_at, end_of, statement_at
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Site
from validate_ddp.source import syntax
from validate_ddp.source.traversal import bodies_of, dotted, walk


def stopped_by(program: Program, decision: facts.Decision, since: int) -> facts.Decision | None:
    """The decision, moved to the condition under which it ends a loop of training; None where it ends none.

    Nor where the ranks talk to each other in that loop behind ``since`` by more than a barrier: they may agree then.
    """
    training = {loop.serial for fact in program.facts(facts.Backward) for loop in fact.loops}
    around = [loop for loop in decision.loops if loop.serial in training]
    condition = statement_at(program.body(decision.site.path), decision.site.statement)
    if decision.who != "all" or not around or not isinstance(condition, syntax.If):
        return None
    loop = around[-1]
    if _talks(program, loop, since):
        return None
    node = statement_at(program.body(loop.site.path), loop.site.span)
    if not isinstance(node, (syntax.For, syntax.While)):
        return None
    called = next((site for site in decision.chain if _is_in(site, loop.site.path, node)), None)
    call = None if called is None else call_at(program.body(called.path), called.span)
    left = next((each for each in _ways_out(node) if _settles(condition, each, call)), None)
    if left is None:
        return None
    span = Span(*left.span)
    return decision.moved(Site(loop.site.path, span, span, loop.site.function))


def _settles(condition: syntax.If, left: syntax.If, call: syntax.Call | None) -> bool:
    """Whether what the condition decides is what the way out asks for.

    call: of the function that decides, in the loop: `stopper(loss)`, and then `if stopper.done:`.
    """
    if condition is left:
        return True
    asked = {name for part in walk(left.test) if (name := dotted(part)) is not None}
    if call is None:
        return not asked.isdisjoint(_set_in(condition))
    if any(part is call for part in walk(left.test)):
        return True
    receiver = dotted(call.func) or ""
    holders = {receiver, receiver.rpartition(".")[0]} - {""}
    fields = {name.removeprefix("self.") for name in _set_in(condition) if name.startswith("self.")}
    return any(f"{holder}.{field}" in asked for holder in holders for field in fields)


def _set_in(condition: syntax.If) -> set[str]:
    """The names and fields that either branch sets."""
    found: set[str | None] = set()
    for part in walk(condition):
        if isinstance(part, syntax.Assign):
            found.update(map(dotted, part.targets))
        elif isinstance(part, syntax.AugAssign):
            found.add(dotted(part.target))
    return {name for name in found if name is not None}


def _ways_out(loop: syntax.For | syntax.While) -> Iterator[syntax.If]:
    """The conditions in a loop under which it is left."""
    pending = list(loop.body)
    while pending:
        statement = pending.pop(0)
        if isinstance(statement, (syntax.For, syntax.While, syntax.FunctionDef, syntax.ClassDef)):
            continue
        if isinstance(statement, syntax.If) and isinstance(statement.body[-1], (syntax.Break, syntax.Return)):
            yield statement
        pending += [inner for body in bodies_of(statement) for inner in body]


def _talks(program: Program, loop: Loop, since: int) -> bool:
    return any(
        fact.order > since and "barrier" not in fact.name and any(each.serial == loop.serial for each in fact.loops)
        for fact in program.facts(facts.Collective)
    )


def _is_in(site: Site, path: str, loop: syntax.For | syntax.While) -> bool:
    return site.path == path and loop.span[:2] <= site.span[:2] <= end_of(loop)
