"""What statements do: branches, loops, early exits, and the names that they set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from validate_ddp.catalogue import Span
from validate_ddp.program import binding, conditions, loops, ranks, roles, turns
from validate_ddp.program.library import contexts, iteration
from validate_ddp.program.machine import RUNS_ON, Machine, Outcome, Scope
from validate_ddp.program.values import (
    Class,
    Function,
    Lazy,
    Opaque,
    RankTest,
    Resource,
    Symbol,
    Value,
    bare,
    carried_by,
    join,
    on_ranks,
)

Node = list[Any]


def walk(machine: Machine, body: list[Node]) -> Outcome:
    """Walk statements in order. The outcome says whether, and on which ranks, what follows still runs."""
    rest, until, outer = "all", "return", len(machine.guards)
    try:
        for statement in body:
            machine.spend()
            if statement[0] not in _DEFINITIONS:
                machine.frame.statement = Span(*statement[1])
            outcome = _STATEMENTS[statement[0]](machine, statement)
            if outcome.ends:
                return Outcome(outcome.ends, rest, until)
            if outcome.rest != "all":
                machine.guards.append(machine.guard(outcome.rest, machine.site(statement[1])))
                rest, until = ranks.both(rest, outcome.rest), outcome.until
                if rest == "none":
                    return Outcome("return", rest, until)
    finally:
        del machine.guards[outer:]
    return Outcome("", rest, until)


def _expr(machine: Machine, node: Node) -> Outcome:
    machine.evaluate(node[2])
    if node[2][0] == "call" and _leaves(node[2][1]):
        return Outcome("raise")
    return RUNS_ON


_EXITS = (["name", "exit"], ["name", "quit"])


def _leaves(function: Node) -> bool:
    if function in _EXITS:
        return True
    return function[0] == "attr" and [function[1], function[2]] in (
        [["name", "sys"], "exit"],
        [["name", "os"], "_exit"],
    )


def _assign(machine: Machine, node: Node) -> Outcome:
    value = machine.evaluate(node[3])
    for target in node[2]:
        binding.assign(machine, target, value)
    return RUNS_ON


def _augment(machine: Machine, node: Node) -> Outcome:
    value = machine.evaluate(["bin", node[3], node[2], node[4]])
    for atom in bare(machine.evaluate(node[2])):
        if isinstance(atom, Resource) and atom.kind == "list":  # `items += more` keeps the list and its items
            machine.write(
                atom.fields, "*", join(atom.fields.get("*", ()), iteration.element(machine.evaluate(node[4])))
            )
            return RUNS_ON
    binding.assign(machine, node[2], value)
    return RUNS_ON


def _if(machine: Machine, node: Node) -> Outcome:
    truth = conditions.test(machine, node[2])
    site = machine.site(node[1])
    if isinstance(truth, RankTest):
        here = ranks.both(machine.who, truth.who)
        if here == "none":
            truth = False
        elif machine.who in ranks.PARTIAL and here == machine.who and truth.exact:
            truth = True
    flags = () if node[2][0] == "cmp" and node[2][1] == ["name", "__name__"] else ("conditional",)
    if truth is True or truth is False:
        conditions.refine(machine, node[2], truth)
        with machine.flagged(*flags):
            return walk(machine, node[3] if truth else node[4])
    who = truth.who if isinstance(truth, RankTest) else "all"
    exact = isinstance(truth, RankTest) and truth.exact
    other = truth.rest if isinstance(truth, RankTest) else "all"

    every = turns.turn(machine, node[2]) if truth is None and machine.loops else ""

    def branch(body: list[Node], positive: bool, members: str) -> Callable[[], Outcome]:
        def run() -> Outcome:
            conditions.refine(machine, node[2], positive)
            holds = every if positive or not every else turns.OPPOSITE[every]
            with machine.guarded(members, site, exact, holds), machine.flagged(*flags):
                return walk(machine, body)

        return run

    known = len(machine.facts)
    first, changes = machine.try_out(branch(node[3], True, who))
    _set_apart(machine, first, known)
    known = len(machine.facts)
    second, other_changes = machine.try_out(branch(node[4], False, other))
    _set_apart(machine, second, known)
    machine.merge([(first, changes, who), (second, other_changes, other)])
    if every and first.ends == "loop" and not second.ends:  # `if (i + 1) % k != 0: continue`
        machine.guards.append(machine.guard("all", site, every=turns.OPPOSITE[every]))  # till the body ends: see `walk`
    return _joined(first, who, second, other)


def _set_apart(machine: Machine, outcome: Outcome, known: int) -> None:
    """Mark what a branch did that ends the program before any rank but one was started: `if export: ...; return`."""
    if outcome.ends not in ("return", "raise") or sum(1 for frame in machine.frames if frame.call is not None) > 1:
        return
    if not any(fact.kind in ("process_group", "wrap", "launch") for fact in machine.facts):
        for fact in machine.facts[known:]:
            fact.flags |= {"alone"}


def _joined(first: Outcome, who: str, second: Outcome, other: str) -> Outcome:
    if first.ends and second.ends:
        return Outcome("loop" if "loop" in (first.ends, second.ends) else first.ends)
    if first.ends and who != "all":
        return Outcome("", other, "loop" if first.ends == "loop" else "return")
    if second.ends and who != "all":
        return Outcome("", who, "loop" if second.ends == "loop" else "return")
    return RUNS_ON


def _with(machine: Machine, node: Node) -> Outcome:
    entered = []
    try:
        for context, target in node[2]:
            value = machine.evaluate(context)
            manager = contexts.entering(machine, value)
            held = manager.__enter__()
            entered.append(manager)
            if target is not None:
                binding.assign(machine, target, held)
        return walk(machine, node[3])
    finally:
        for manager in reversed(entered):
            manager.__exit__(None, None, None)


def _try(machine: Machine, node: Node) -> Outcome:
    _, _, body, handlers, orelse, final = node
    outcome = walk(machine, body)
    if not outcome.ends:
        after = walk(machine, orelse)
        outcome = after if after.ends else outcome
    rows: list[Any] = [(outcome, {}, "all")]
    for _, name, handler in handlers:

        def run(name: str = name, handler: list[Node] = handler) -> Outcome:
            if name:
                machine.write(machine.frame.scope.names, name, (Opaque(name),))
            with machine.flagged("handler"):
                return walk(machine, handler)

        caught, changes = machine.try_out(run)
        rows.append((caught, changes, "all"))
    machine.merge(rows)
    after = walk(machine, final)
    if after.ends:
        return after
    if outcome.ends and all(row[0].ends for row in rows):
        return outcome
    return RUNS_ON if outcome.ends else outcome


def _return(machine: Machine, node: Node) -> Outcome:
    value = machine.evaluate(node[2])
    who = machine.who
    if who in ranks.PARTIAL and who != machine.frame.who:
        value = on_ranks(value, who)
    machine.frame.returned = join(machine.frame.returned, value)
    return Outcome("return")


def _raise(machine: Machine, node: Node) -> Outcome:
    machine.evaluate(node[2])
    return Outcome("raise")


def _put_off(machine: Machine, node: Node) -> bool:
    """Bind a definition of a module's top level to its node: most are never looked up in a walk."""
    frame = machine.frame
    if machine.defining or frame.scope is not frame.module.scope:
        machine.defining = False
        return False
    machine.write(frame.scope.names, node[2], (Lazy("", node[2], None, node, frame.module),))
    return True


def _define(machine: Machine, node: Node) -> Outcome:
    if _put_off(machine, node):
        return RUNS_ON
    function = Function(machine.frame.module, node, machine.frame.scope)
    machine.write(machine.frame.scope.names, node[2], roles.decorated(machine, function, node[5]))
    return RUNS_ON


def _class(machine: Machine, node: Node) -> Outcome:
    if _put_off(machine, node):
        return RUNS_ON
    bases = [atom for base in node[3] for atom in bare(machine.evaluate(base)) if isinstance(atom, (Class, Symbol))]
    members: dict[str, Value] = {}
    defined = Class(machine.frame.module, node, members, bases)
    scope = machine.frame.scope
    machine.frame.scope = Scope(members, scope)
    try:
        walk(machine, node[4])
    finally:
        machine.frame.scope = scope
    for value in members.values():
        for atom in value:
            if isinstance(atom, Function):
                atom.owner = defined
                atom.scope = scope
    machine.write(scope.names, node[2], (defined,))
    return RUNS_ON


def _import(machine: Machine, node: Node) -> Outcome:
    machine.library.bind_import(machine, machine.frame, node)
    return RUNS_ON


def _global(machine: Machine, node: Node) -> Outcome:
    machine.frame.scope.outer.update(node[2])
    return RUNS_ON


def _assert(machine: Machine, node: Node) -> Outcome:
    if conditions.test(machine, node[2]) is False:
        return Outcome("raise")  # such as `assert world_size == 1`
    conditions.refine(machine, node[2], True)
    conditions.assume(machine, node[2])
    return RUNS_ON


def _match(machine: Machine, node: Node) -> Outcome:
    subject = machine.evaluate(node[2])
    rows: list[Any] = []
    for captures, guard, body in node[3]:

        def run(captures: list[str] = captures, guard: Node | None = guard, body: list[Node] = body) -> Outcome:
            for name in captures:
                machine.write(machine.frame.scope.names, name, (Opaque(name, carried_by(subject)),))
            if guard is not None:
                machine.evaluate(guard)
            return walk(machine, body)

        outcome, changes = machine.try_out(run)
        rows.append((outcome, changes, "all"))
    machine.merge([*rows, (RUNS_ON, {}, "all")])
    return RUNS_ON


_STATEMENTS: dict[str, Callable[[Machine, Node], Outcome]] = {
    "expr": _expr,
    "assign": _assign,
    "aug": _augment,
    "if": _if,
    "for": loops.walk_for,
    "while": loops.walk_while,
    "with": _with,
    "try": _try,
    "return": _return,
    "raise": _raise,
    "break": lambda machine, node: Outcome("loop"),
    "continue": lambda machine, node: Outcome("loop"),
    "def": _define,
    "class": _class,
    "import": _import,
    "from": _import,
    "global": _global,
    "assert": _assert,
    "match": _match,
}
_DEFINITIONS = ("def", "class")
