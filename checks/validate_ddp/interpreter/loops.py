"""What loops do: what they draw from, how often their body runs, and what an early exit in it means."""

from __future__ import annotations

from typing import Any

from validate_ddp.findings import Span
from validate_ddp.interpreter import binding, conditions, counters, drawing, facts, iteration, narrowing, ranks, shares
from validate_ddp.interpreter.fact import Loop
from validate_ddp.interpreter.machine import LEAVES, RUNS_ON, Machine, Outcome
from validate_ddp.interpreter.training import BatchSampler, Loader, Sampler
from validate_ddp.interpreter.values import Instance, Opaque, Rank, RankTest, bare, reaching
from validate_ddp.source.syntax import Break, For, Name, Statement, While
from validate_ddp.source.traversal import walk


def _loop_outcome(machine: Machine, inside: Outcome) -> Outcome:
    """What an early exit in a loop's body means behind the loop."""
    if inside.until != "loop" and inside.rest in ranks.PARTIAL:
        return Outcome("", inside.rest, inside.until, inside.sure)
    return RUNS_ON


def walk_for(machine: Machine, node: For) -> Outcome:
    target, body = node.target, node.body
    given = machine.evaluate(node.iter)
    value = drawing.opened(machine, given)
    machine.activations += 1
    machine.open()
    iteration.note(machine, value, machine.site(node.span), "for", machine.activations)
    if value is not given:
        drawing.note(machine, value, machine.site(node.span), "for", machine.activations)
    counts, once = iteration.counting(node.iter, value)
    name = target.id if isinstance(target, Name) else ""
    loop = Loop(machine.site(node.span), name, counts, once, machine.activations)
    element = shares.drawn(value, iteration.element(value))
    if name and counts:
        ranks_in = tuple(part for part in reaching(value) if isinstance(part, Rank))  # `range(rank, n, world_size)`
        element = (Opaque(name, ranks_in, alike=not ranks_in),)

    drawn = {} if counts else iteration.elements_by_rank(value)

    def run() -> Outcome:
        outcome = RUNS_ON
        counters.advance(machine, body)
        for (who, sure), each in (drawn or {("all", True): element}).items():
            with machine.guarded(who, loop.site, sure=sure):
                binding.assign(machine, target, each)
                with machine.looping(loop):
                    turn = machine.walk(body)
            outcome = turn if who == "all" else outcome
        return outcome

    # A failed try_out puts names back as they were: the loop's effects are joined with those of no iteration.
    outcome, changes = machine.try_out(run)
    machine.merge([(Outcome("", outcome.rest), changes, "all"), (RUNS_ON, {}, "all")])
    if loop.counts and not loop.once and loop.target and body:
        _note_epochs(machine, loop, body)
    machine.close()
    machine.walk(node.orelse)
    return _loop_outcome(machine, outcome)


def _note_epochs(machine: Machine, loop: Loop, body: list[Statement]) -> None:
    """Record a counting loop with the names in it that hold a loader or a sampler: there its epoch can be set."""
    named = dict(machine.frame.scope.names)
    for atom in bare(named.get("self", ())):
        if isinstance(atom, Instance):
            named.update({f"self.{field}": value for field, value in atom.fields.items()})
    held = {
        name: value
        for name, value in named.items()
        if value and all(isinstance(atom, (Loader, Sampler, BatchSampler)) for atom in value)
    }
    if held:
        machine.record(facts.EpochLoop(loop.target, body=Span(*body[0].span), held=held), loop.site)


def walk_while(machine: Machine, node: While) -> Outcome:
    truth = conditions.test(machine, node.test)
    if truth is False:
        return machine.walk(node.orelse)
    machine.activations += 1
    loop = Loop(machine.site(node.span), "", True, False, machine.activations)
    test = truth if isinstance(truth, RankTest) else RankTest("all")

    def run() -> Outcome:
        counters.advance(machine, node.body)
        with machine.looping(loop), machine.guarded(test.who, sure=test.sure):
            narrowing.refine(machine, node.test, True)
            return machine.walk(node.body)

    outcome, changes = machine.try_out(run)
    never: list[Any] = [] if truth is True else [(RUNS_ON, {}, "all")]
    machine.merge([(Outcome("", outcome.rest), changes, "all"), *never])
    if not any(isinstance(part, Break) for part in walk(node.body)):  # `while isinstance(net, DDP): net = net.module`
        narrowing.refine(machine, node.test, False)
    machine.walk(node.orelse)
    if truth is True and outcome.ends in LEAVES:
        return Outcome(outcome.ends)
    return _loop_outcome(machine, outcome)
