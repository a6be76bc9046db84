"""Whether a schedule of the learning rate counts micro-batches, although it goes on once for several of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from validate_ddp.findings import Place
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Flag, Guard, Loop
from validate_ddp.interpreter.names_of_training import COUNTING
from validate_ddp.interpreter.surroundings import call_at, statement_at
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import Loader
from validate_ddp.interpreter.turns import ONCE
from validate_ddp.interpreter.values import bare, constant
from validate_ddp.rules.proposing import place
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Expression
from validate_ddp.source.traversal import keywords_of, last_name, walk

_SPANS = {"total_steps", "T_max", "num_training_steps", "max_steps"}
_DIVIDING = ("Div", "FloorDiv", "into", "Mod")


class Counted(NamedTuple):
    """A schedule over the turns of a loop, in which it goes on once for several turns. sure: several they are."""

    evidence: list[Place]
    sure: bool


def of_micro_batches(program: Program, fact: facts.Scheduler) -> Counted | None:
    """Where the schedule's length counts every turn of the loop, and only one in several is a step of it."""
    for step, loop, where in _rare_steps(program, fact):
        if not _counts_turns(program, fact, loop):
            continue
        evidence = [place(step.site, "the schedule goes on here, once for several batches")]
        if where is not None:
            evidence.append(place(where.site, "which is where gradients have been accumulated"))
        return Counted(evidence, where is not None or _surely_accumulates(program))
    return None


def _rare_steps(program: Program, fact: facts.Scheduler) -> Iterator[tuple[facts.ScheduleStep, Loop, Guard | None]]:
    """The steps of the schedule, if every one of them comes once for several turns, as the optimizer's does."""
    training = {loop.serial for fact in program.facts(facts.Backward) for loop in fact.loops}
    met = [
        step
        for step in program.facts(facts.ScheduleStep)
        if any(loop.serial in training for loop in step.loops)  # not on the way to where a run goes on
        and any(one is other for one in bare(step.scheduler) for other in fact.scheduler)
    ]
    found = []
    for step in met:
        if not step.loops:
            return
        loop = step.loops[-1]
        guard = next((guard for guard in step.guards if guard.every == ONCE and _is_in(guard, loop)), None)
        by_library = Flag.ACCUMULATE in step.flags and any(scheduler.prepared for scheduler in fact.scheduler)
        if not by_library and (guard is None or not _has_step(program, guard)):
            return
        found.append((step, loop, None if by_library else guard))
    yield from found


def _is_in(guard: Guard, loop: Loop) -> bool:
    place, around = guard.site, loop.site
    return (place.path, place.function) == (around.path, around.function) and place.span.line > around.span.line


def _has_step(program: Program, guard: Guard) -> bool:
    """Whether the optimizer steps under the same condition: then gradients are accumulated."""
    return any(other.site == guard.site for step in program.facts(facts.Step) for other in step.guards)


def _surely_accumulates(program: Program) -> bool:
    turns = [constant(atom.accumulating) for launch in program.facts(facts.Launch) for atom in launch.launcher]
    return any(isinstance(number, int) and number > 1 for number in turns)


def _counts_turns(program: Program, fact: facts.Scheduler, loop: Loop) -> bool:
    """Whether the length is that of the loader that the loop goes over, or the bound up to which it counts."""
    loaders = [fact.loader[0] for fact in program.facts(facts.Iterate) if fact.serial == loop.serial]
    for length in fact.lengths:
        if any(operator in _DIVIDING for operator, _ in length.steps):
            continue
        measured = [atom for atom in bare(length.of) if isinstance(atom, Loader)]
        if any(atom is loader or atom.site == loader.site for atom in measured for loader in loaders):
            return True
    return not fact.lengths and _bound(program, loop) in _factors(program, fact)


def _bound(program: Program, loop: Loop) -> str:
    """The name up to which a loop counts: ``for step in range(cfg.steps_per_epoch)``; empty for another loop."""
    node = statement_at(program.body(loop.site.path), loop.site.span)
    if not isinstance(node, syntax.For):
        return ""
    for call in walk(node.iter):
        if isinstance(call, syntax.Call) and last_name(call.func) in COUNTING.words and call.args:
            return last_name(call.args[-1])
    return ""


def _factors(program: Program, fact: facts.Scheduler) -> set[str]:
    """The names whose product the length is, as it is written."""
    call = call_at(program.body(fact.site.path), fact.site.span)
    given = [value for name, value in keywords_of(call).items() if name in _SPANS] if call is not None else []
    return {name for value in given for name in _names(value)} - {""}


def _names(node: Expression) -> Iterator[str]:
    if isinstance(node, syntax.BinOp) and node.op == "Mult":
        yield from _names(node.left)
        yield from _names(node.right)
    elif isinstance(node, (syntax.Name, syntax.Attribute)):
        yield last_name(node)
