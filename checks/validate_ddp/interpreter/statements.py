"""What statements do: branches, loops, early exits, and the names that they set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from validate_ddp.interpreter import (
    binding,
    conditions,
    exits,
    facts,
    gradients,
    handlers,
    loops,
    narrowing,
    ranks,
    roles,
    turns,
)
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import LEAVES, MAIN, RUNS_ON, Machine, Outcome, Pushed, Scope
from validate_ddp.interpreter.objects import List
from validate_ddp.interpreter.values import (
    Class,
    Function,
    Lazy,
    Opaque,
    RankTest,
    Symbol,
    Value,
    bare,
    carried_by,
    join,
    on_ranks,
)
from validate_ddp.models import contexts, iteration, metrics

Node = list[Any]


def walk(machine: Machine, body: list[Node]) -> Outcome:
    """Walk statements in order. The outcome says whether, and on which ranks, what follows still runs."""
    rest: ranks.Who = "all"
    until, sure, outer = "return", True, len(machine.guards)
    frame = machine.frames[-1]
    try:
        for statement in body:
            machine.spend(statement)
            kind = statement[0]
            if kind not in _DEFINITIONS:
                frame.statement = statement[1]
            outcome = _STATEMENTS[kind](machine, statement)
            if outcome is RUNS_ON:
                continue
            if outcome.ends:
                return Outcome(outcome.ends, rest, until, sure)
            if outcome.rest != "all":
                machine.guards.append(machine.guard(outcome.rest, machine.site(statement[1]), sure=outcome.sure))
                sure = sure and outcome.sure
                until = outcome.until if rest == "all" else _further(until, outcome.until)
                rest = ranks.both(rest, outcome.rest)
                if rest == "none":
                    return Outcome("return", rest, until, sure)
    except RecursionError:
        machine.stop(
            "its calls and branches are nested too deeply for Python's stack: what comes after is not looked at"
        )
        raise
    finally:
        del machine.guards[outer:]
    return Outcome("", rest, until, sure)


def _further(before: str, now: str) -> str:
    """How far it reaches that some ranks have left in two ways: where one of them is a raise, a handler has not all."""
    return "return" if "raise" in (before, now) and before != now else now


def _expr(machine: Machine, node: Node) -> Outcome:
    if len(node) > 3 and _is_idle(machine, node):
        return RUNS_ON
    machine.evaluate(node[2])
    if node[2][0] == "call" and exits.name_of_exit(node[2][1]):
        exits.note(machine, node)
        return Outcome("exit")
    return RUNS_ON


def _leave_loop(machine: Machine, node: Node) -> Outcome:
    exits.note(machine, node)
    return Outcome("loop")


_SIMPLE = ("const", "name", "attr")


def _assign(machine: Machine, node: Node) -> Outcome:
    if len(node) > 4 and node[3][0] not in _SIMPLE and _is_idle(machine, node):
        if machine.defining:
            machine.defining = False
        elif len(node[2]) == 1 and node[2][0][0] == "name" and node[2][0][1] not in machine.frame.scope.names:
            name = node[2][0][1]
            machine.write(machine.frame.scope.names, name, (Lazy("", name, None, node, machine.frame.module),))
            return RUNS_ON
    value = machine.evaluate(node[3])
    if machine.gathers and gradients.is_off(machine):
        value = gradients.cut(value)
    for target in node[2]:
        binding.assign(machine, target, value, written=node[3][0] != "bin")
    return RUNS_ON


def _augment(machine: Machine, node: Node) -> Outcome:
    value = machine.evaluate(["bin", node[3], node[2], node[4]])
    if machine.loops and node[3] == "Add":
        value = metrics.marked(value, metrics.SUMMED)
        if node[2][0] == "sub" and node[2][1][0] in ("name", "attr"):
            held = metrics.with_item(machine.evaluate(node[2][1]), value)
            if held:
                binding.assign(machine, node[2][1], held)
    for atom in bare(machine.evaluate(node[2])):
        if isinstance(atom, List):  # `items += more` keeps the list and its items
            machine.write(
                atom.fields, "*", join(atom.fields.get("*", ()), iteration.element(machine.evaluate(node[4])))
            )
            return RUNS_ON
    binding.assign(machine, node[2], value)
    return RUNS_ON


def _if(machine: Machine, node: Node) -> Outcome:
    truth, differs = conditions.asked(machine, node[2])
    site = machine.site(node[1])
    if isinstance(truth, RankTest):
        here = ranks.both(machine.who, truth.who)
        if here == "none":
            truth = False
        elif machine.who in ranks.PARTIAL and here == machine.who and truth.exact and (machine.sure or not truth.sure):
            truth = True
    flags = () if node[2][0] == "cmp" and node[2][1] == ["name", "__name__"] else (Flag.CONDITIONAL,)
    if truth is True or truth is False:
        narrowing.refine(machine, node[2], truth)
        with machine.flagged(*flags):
            return walk(machine, node[3] if truth else node[4])
    if truth is None:
        exits.note_unsure(machine, node[2], (node[3], node[4]))
    test = truth if isinstance(truth, RankTest) else RankTest("all", exact=False, rest="all")
    who, other = test.who, test.rest

    every = turns.turn(machine, node[2]) if truth is None and machine.loops else ""

    def branch(body: list[Node], positive: bool, members: ranks.Who) -> Callable[[], Outcome]:
        def run() -> Outcome:
            narrowing.refine(machine, node[2], positive)
            holds = every if positive or not every else turns.OPPOSITE[every]
            with machine.guarded(members, site, test.exact, holds, test.sure, differs), machine.flagged(*flags):
                return walk(machine, body)

        return run

    machine.open()  # until both are known: what one branch does, the other may do as well
    before, known = machine.starts, len(machine.facts)
    first, changes = machine.try_out(branch(node[3], True, who))
    _set_apart(machine, first, known)
    started, known = machine.starts, len(machine.facts)
    second, other_changes = machine.try_out(branch(node[4], False, other))
    _set_apart(machine, second, known)
    machine.close()
    if truth is None and machine.starts > before:
        narrowing.agree(machine, node[2])
    if truth is None and (started > before) is not (machine.starts > started):
        narrowing.presume(machine, node[2], started > before)
    machine.merge([(first, changes, who), (second, other_changes, other)], test.sure)
    if every and first.ends == "loop" and not second.ends:  # `if (i + 1) % k != 0: continue`
        machine.guards.append(machine.guard("all", site, every=turns.OPPOSITE[every]))  # till the body ends: see `walk`
    elif differs and not (first.ends and second.ends) and (first.ends or second.ends) in _GOES_ON_ELSEWHERE:
        machine.guards.append(machine.guard("all", site, apart=True))
    return _joined(first, second, test)


_GOES_ON_ELSEWHERE = ("return", "loop")
"""Ways out after which a rank runs on without the rest of the body: `if isnan(loss): continue`."""


def _set_apart(machine: Machine, outcome: Outcome, known: int) -> None:
    """Mark what a branch did that ends the program before any rank but one was started: `if export: ...; return`."""
    if outcome.ends not in LEAVES or sum(1 for frame in machine.frames if frame.call is not None) > 1:
        return
    if not any(isinstance(fact, (facts.ProcessGroup, facts.Wrap, facts.Launch)) for fact in machine.facts):
        for fact in machine.facts[known:]:
            fact.flags |= {Flag.ALONE}


def _joined(first: Outcome, second: Outcome, test: RankTest) -> Outcome:
    if first.ends and second.ends:
        return Outcome("loop" if "loop" in (first.ends, second.ends) else first.ends)
    if first.ends and test.who != "all":
        return Outcome("", test.rest, first.ends if first.ends in ("loop", "raise") else "return", test.sure)
    if second.ends and test.who != "all":
        return Outcome("", test.who, second.ends if second.ends in ("loop", "raise") else "return", test.sure)
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


_CAUGHT = ("Exception", "BaseException", "AttributeError", "NameError", "UnboundLocalError", "TypeError")


def _catches(kind: Node | None, name: str, body: list[Node]) -> bool:
    """Whether a handler catches what a missing object raises, and keeps it."""
    if any(statement[0] == "raise" for statement in body):
        return False
    if kind is None or kind[0] not in ("name", "attr"):
        return True
    return kind[1 if kind[0] == "name" else 2] in _CAUGHT


def _try(machine: Machine, node: Node) -> Outcome:
    _, _, body, caught, orelse, final = node
    broad = [handlers.catches_any(row[0]) for row in caught]
    swallowing = any(any_error and handlers.goes_on(row[2]) for any_error, row in zip(broad, caught, strict=True))
    tried = machine.guard("all", machine.site(node[1]))._replace(swallows=True)
    missing = (Flag.TRIED,) if any(_catches(*handler) for handler in caught) else ()
    with Pushed(machine.guards, (tried,) if swallowing else ()), machine.flagged(*missing):
        outcome = walk(machine, body)
    if not outcome.ends:
        after = walk(machine, orelse)
        outcome = after if after.ends else outcome
    rows: list[Any] = [(outcome, {}, "all")]
    for (_, name, handler), any_error in zip(caught, broad, strict=True):
        flags = (Flag.HANDLER, Flag.ANY_ERROR) if any_error and not handlers.only_imports(body) else (Flag.HANDLER,)

        def run(name: str = name, handler: list[Node] = handler, flags: tuple[Flag, ...] = flags) -> Outcome:
            if name:
                machine.write(machine.frame.scope.names, name, (Opaque(name),))
            with machine.flagged(*flags):
                return walk(machine, handler)

        ended, changes = machine.try_out(run)
        rows.append((ended, changes, "all"))
    machine.merge(rows)
    after = walk(machine, final)
    if after.ends:
        return after
    if outcome.ends and all(row[0].ends for row in rows):
        return outcome
    raised = outcome.rest != "all" and outcome.until == "raise"
    if outcome.ends or (raised and any(row[0] is RUNS_ON or not row[0].ends for row in rows[1:])):
        return RUNS_ON  # ranks that raised go on behind their handler
    return outcome


def _return(machine: Machine, node: Node) -> Outcome:
    value = machine.evaluate(node[2])
    who = machine.who
    if who in ranks.PARTIAL and who != machine.frame.who:
        exits.note(machine, node)
        value = on_ranks(value, who, machine.sure)
    machine.frame.returned = join(machine.frame.returned, value)
    return Outcome("return")


def _raise(machine: Machine, node: Node) -> Outcome:
    machine.evaluate(node[2])
    return Outcome("raise")


def _is_idle(machine: Machine, node: Node) -> bool:
    """Whether a statement at an imported module's top level has no word of what rules ask about."""
    module = machine.frame.module
    return module.scope.names["__name__"] is not MAIN and not machine.library.interesting(module, node[-1])


def _for(machine: Machine, node: Node) -> Outcome:
    if len(node) > 6 and _is_idle(machine, node):
        return RUNS_ON
    return loops.walk_for(machine, node)


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
    narrowing.refine(machine, node[2], True)
    narrowing.assume(machine, node[2])
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
    "for": _for,
    "while": loops.walk_while,
    "with": _with,
    "try": _try,
    "return": _return,
    "raise": _raise,
    "break": _leave_loop,
    "continue": _leave_loop,
    "def": _define,
    "class": _class,
    "import": _import,
    "from": _import,
    "global": _global,
    "assert": _assert,
    "match": _match,
}
_DEFINITIONS = ("def", "class")
