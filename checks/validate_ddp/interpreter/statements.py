"""What statements do: branches, loops, early exits, and the names that they set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from validate_ddp.interpreter import (
    binding,
    branches,
    classes,
    conditions,
    contexts,
    exits,
    gradients,
    handlers,
    iteration,
    loops,
    metrics,
    narrowing,
    ranks,
    roles,
    tallies,
    turns,
)
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import MAIN, RUNS_ON, Machine, Outcome, Pushed, Scope
from validate_ddp.interpreter.objects import List
from validate_ddp.interpreter.values import (
    Class,
    Function,
    Lazy,
    Opaque,
    RankTest,
    Value,
    bare,
    carried_by,
    join,
    on_ranks,
)
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Statement
from validate_ddp.source.traversal import asks_for_main, last_name


def walk(machine: Machine, body: list[Statement]) -> Outcome:
    """Walk statements in order. The outcome says whether, and on which ranks, what follows still runs."""
    rest: ranks.Who = "all"
    until, sure, outer = "return", True, len(machine.guards)
    frame = machine.frames[-1]
    try:
        for statement in body:
            machine.spend(statement)
            kind = type(statement)
            if kind not in _DEFINITIONS:
                frame.statement = statement.span
            outcome = _STATEMENTS[kind](machine, statement)
            if outcome is RUNS_ON:
                continue
            if outcome.ends:
                return Outcome(outcome.ends, rest, until, sure)
            if outcome.rest != "all":
                machine.remain(outcome, statement.span)
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


def _expr(machine: Machine, node: syntax.Expr) -> Outcome:
    if _is_idle(machine, node.words):
        return RUNS_ON
    machine.evaluate(node.value)
    if isinstance(node.value, syntax.Call) and exits.name_of_exit(node.value.func):
        exits.note(machine, node)
        return Outcome("exit")
    return RUNS_ON


def _leave_loop(machine: Machine, node: syntax.Break | syntax.Continue) -> Outcome:
    exits.note(machine, node)
    return Outcome("loop")


_SIMPLE = (syntax.Constant, syntax.Name, syntax.Attribute)


def _assign(machine: Machine, node: syntax.Assign) -> Outcome:
    if not isinstance(node.value, _SIMPLE) and _is_idle(machine, node.words):
        target = node.targets[0]
        if machine.defining:
            machine.defining = False
        elif len(node.targets) == 1 and isinstance(target, syntax.Name) and target.id not in machine.frame.scope.names:
            name = target.id
            machine.write(machine.frame.scope.names, name, (Lazy("", name, None, node, machine.frame.module),))
            return RUNS_ON
    value = metrics.summed_up(machine, node, machine.evaluate(node.value))
    if machine.gathers and gradients.is_off(machine):
        value = gradients.cut(value)
    for target in node.targets:
        binding.assign(machine, target, value, written=not isinstance(node.value, syntax.BinOp))
    return RUNS_ON


def _augment(machine: Machine, node: syntax.AugAssign) -> Outcome:
    target = node.target
    value = machine.evaluate(syntax.BinOp(node.op, target, node.value))
    if machine.loops and node.op == "Add":
        value = tallies.added(machine, node, value)
        if isinstance(target, syntax.Subscript) and isinstance(target.value, (syntax.Name, syntax.Attribute)):
            held = metrics.with_item(machine.evaluate(target.value), value)
            if held:
                binding.assign(machine, target.value, held)
    for atom in bare(machine.evaluate(target)):
        if isinstance(atom, List):  # `items += more` keeps the list and its items
            machine.write(
                atom.fields, "*", join(atom.fields.get("*", ()), iteration.element(machine.evaluate(node.value)))
            )
            return RUNS_ON
    binding.assign(machine, target, value)
    return RUNS_ON


def _if(machine: Machine, node: syntax.If) -> Outcome:
    truth, differs, premised = conditions.asked(machine, node.test)
    site = machine.site(node.span)
    if isinstance(truth, RankTest):
        here = ranks.both(machine.who, truth.who)
        if here == "none":
            truth = False
        elif machine.who in ranks.PARTIAL and here == machine.who and truth.exact and (machine.sure or not truth.sure):
            truth = True
    flags = () if asks_for_main(node) else (Flag.CONDITIONAL,)
    if truth is True or truth is False:
        narrowing.refine(machine, node.test, truth)
        with machine.guarded("all", site, premised=premised), machine.flagged(*flags):
            return walk(machine, node.body if truth else node.orelse)
    if truth is None:
        tallies.note(machine, node.test)
        exits.note_unsure(machine, node.test, (node.body, node.orelse))
    test = truth if isinstance(truth, RankTest) else RankTest("all", exact=False, rest="all")
    who, other = test.who, test.rest
    every = turns.turn(machine, node.test) if truth is None and machine.loops else ""

    def branch(body: list[Statement], positive: bool, members: ranks.Who) -> Callable[[], Outcome]:
        def run() -> Outcome:
            narrowing.refine(machine, node.test, positive)
            holds = every if positive or not every else turns.OPPOSITE[every]
            held = machine.guarded(members, site, test.exact, holds, test.sure, differs, premised)
            with held, machine.flagged(*flags):
                return walk(machine, body)

        return run

    machine.open()  # until both are known: what one branch does, the other may do as well
    before, mark = machine.counts.starts, branches.mark(machine)
    first, changes = machine.try_out(branch(node.body, True, who))
    branches.set_apart(machine, first, mark.facts)
    started, between = machine.counts.starts, branches.mark(machine)
    second, other_changes = machine.try_out(branch(node.orelse, False, other))
    branches.set_apart(machine, second, between.facts)
    branches.keep_apart(machine, [mark, between, branches.mark(machine)])
    if ranks.complementary(who, other):
        branches.rejoin(machine, site, mark.facts, between.facts)
    machine.close()
    if truth is None and machine.counts.starts > before:
        narrowing.agree(machine, node.test)
    if truth is None and (started > before) is not (machine.counts.starts > started):
        narrowing.presume(machine, node.test, started > before)
    machine.merge([(first, changes, who), (second, other_changes, other)], test.sure)
    if first.ends == "loop" and not second.ends:
        narrowing.skip(machine, node.test)
    if every and first.ends == "loop" and not second.ends:  # `if (i + 1) % k != 0: continue`
        machine.guards.append(machine.guard("all", site, every=turns.OPPOSITE[every]))  # till the body ends: see `walk`
    elif differs and not (first.ends and second.ends) and (first.ends or second.ends) in _GOES_ON_ELSEWHERE:
        machine.guards.append(machine.guard("all", site, apart=True))
    if first.ends == "raise" and who in ("some", "unclear") and getattr(node.test, "ops", []) != ["Eq"]:
        return RUNS_ON  # `if rank != expected: raise`, which no rank does in a launch that goes well
    return _joined(first, second, test)


_GOES_ON_ELSEWHERE = ("return", "loop")
"""Ways out after which a rank runs on without the rest of the body: `if isnan(loss): continue`."""


def _joined(first: Outcome, second: Outcome, test: RankTest) -> Outcome:
    if first.ends and second.ends:
        return Outcome("loop" if "loop" in (first.ends, second.ends) else first.ends)
    if first.ends and test.who != "all":
        return Outcome("", test.rest, first.ends if first.ends in ("loop", "raise") else "return", test.sure)
    if second.ends and test.who != "all":
        return Outcome("", test.who, second.ends if second.ends in ("loop", "raise") else "return", test.sure)
    return RUNS_ON


def _with(machine: Machine, node: syntax.With) -> Outcome:
    entered = []
    try:
        for item in node.items:
            value = machine.evaluate(item.context_expr)
            manager = contexts.entering(machine, value)
            held = manager.__enter__()
            entered.append(manager)
            if item.optional_vars is not None:
                binding.assign(machine, item.optional_vars, held)
        return walk(machine, node.body)
    finally:
        for manager in reversed(entered):
            manager.__exit__(None, None, None)


_CAUGHT = ("Exception", "BaseException", "AttributeError", "NameError", "UnboundLocalError", "TypeError")


def _catches(handler: syntax.ExceptHandler) -> bool:
    """Whether a handler catches what a missing object raises, and keeps it."""
    if any(isinstance(statement, syntax.Raise) for statement in handler.body):
        return False
    return not isinstance(handler.type, (syntax.Name, syntax.Attribute)) or last_name(handler.type) in _CAUGHT


def _try(machine: Machine, node: syntax.Try) -> Outcome:
    body, caught = node.body, node.handlers
    broad = [handlers.catches_any(each.type) for each in caught]
    swallowing = any(any_error and handlers.goes_on(each.body) for any_error, each in zip(broad, caught, strict=True))
    tried = machine.guard("all", machine.site(node.span))._replace(swallows=True)
    missing = (Flag.TRIED,) if any(map(_catches, caught)) else ()
    with Pushed(machine.guards, (tried,) if swallowing else ()), machine.flagged(*missing):
        outcome = walk(machine, body)
    if not outcome.ends:
        after = walk(machine, node.orelse)
        outcome = after if after.ends else outcome
    rows: list[Any] = [(outcome, {}, "all")]
    for handler, any_error in zip(caught, broad, strict=True):
        flags = (Flag.HANDLER, Flag.ANY_ERROR) if any_error and not handlers.only_imports(body) else (Flag.HANDLER,)

        def run(handler: syntax.ExceptHandler = handler, flags: tuple[Flag, ...] = flags) -> Outcome:
            if handler.name:
                machine.write(machine.frame.scope.names, handler.name, (Opaque(handler.name),))
            with machine.flagged(*flags):
                return walk(machine, handler.body)

        ended, changes = machine.try_out(run)
        rows.append((ended, changes, "all"))
    machine.merge(rows)
    after = walk(machine, node.finalbody)
    if after.ends:
        return after
    if outcome.ends and all(row[0].ends for row in rows):
        return outcome
    raised = outcome.rest != "all" and outcome.until == "raise"
    if outcome.ends or (raised and any(row[0] is RUNS_ON or not row[0].ends for row in rows[1:])):
        return RUNS_ON  # ranks that raised go on behind their handler
    return outcome


def _return(machine: Machine, node: syntax.Return) -> Outcome:
    value = machine.evaluate(node.value)
    who = machine.who
    if who in ranks.PARTIAL and who != machine.frame.who:
        exits.note(machine, node)
        value = on_ranks(exits.taken_along(value), who, machine.sure)
    machine.frame.returned = join(machine.frame.returned, value)
    return Outcome("return")


def _raise(machine: Machine, node: syntax.Raise) -> Outcome:
    machine.evaluate(node.exc)
    return Outcome("raise")


def _is_idle(machine: Machine, words: list[str] | None) -> bool:
    """Whether a statement with these words at an imported module's top level has none of what rules ask about."""
    if words is None:
        return False
    module = machine.frame.module
    return module.scope.names["__name__"] is not MAIN and not machine.library.interesting(module, words)


def _for(machine: Machine, node: syntax.For) -> Outcome:
    if _is_idle(machine, node.words):
        return RUNS_ON
    return loops.walk_for(machine, node)


def _put_off(machine: Machine, node: syntax.FunctionDef | syntax.ClassDef) -> bool:
    """Bind a definition of a module's top level to its node: most are never looked up in a walk."""
    frame = machine.frame
    if machine.defining or frame.scope is not frame.module.scope:
        machine.defining = False
        return False
    machine.write(frame.scope.names, node.name, (Lazy("", node.name, None, node, frame.module),))
    return True


def _define(machine: Machine, node: syntax.FunctionDef) -> Outcome:
    if _put_off(machine, node):
        return RUNS_ON
    machine.made.append(machine.frame.scope)
    function = Function(machine.frame.module, node, machine.frame.scope)
    machine.write(machine.frame.scope.names, node.name, roles.decorated(machine, function, node.decorator_list))
    return RUNS_ON


def _class(machine: Machine, node: syntax.ClassDef) -> Outcome:
    if _put_off(machine, node):
        return RUNS_ON
    members: dict[str, Value] = {}
    defined = Class(machine.frame.module, node, members, classes.bases_of(machine, node))
    machine.made.append(defined)
    scope = machine.frame.scope
    machine.frame.scope = inside = Scope(members, scope)
    try:
        walk(machine, node.body)
    finally:
        machine.frame.scope = scope
    for value in members.values():
        for atom in value:
            if isinstance(atom, Function):
                atom.owner = defined
                if atom.scope is inside:  # and not what a decorator made of it, which has names of its own round it
                    atom.scope = scope
    machine.write(scope.names, node.name, (defined,))
    return RUNS_ON


def _import(machine: Machine, node: syntax.Import | syntax.ImportFrom) -> Outcome:
    machine.library.bind_import(machine, machine.frame, node)
    return RUNS_ON


def _global(machine: Machine, node: syntax.Global) -> Outcome:
    machine.frame.scope.outer.update(node.names)
    return RUNS_ON


def _assert(machine: Machine, node: syntax.Assert) -> Outcome:
    if conditions.test(machine, node.test) is False:
        return Outcome("raise")  # such as `assert world_size == 1`
    narrowing.refine(machine, node.test, True)
    narrowing.assume(machine, node.test)
    return RUNS_ON


def _match(machine: Machine, node: syntax.Match) -> Outcome:
    subject = machine.evaluate(node.subject)
    rows: list[Any] = []
    marks = [branches.mark(machine)]
    for case in node.cases:

        def run(case: syntax.MatchCase = case) -> Outcome:
            for name in case.captures:
                machine.write(machine.frame.scope.names, name, (Opaque(name, carried_by(subject)),))
            if case.guard is not None:
                machine.evaluate(case.guard)
            return walk(machine, case.body)

        rows.append((*machine.try_out(run), "all"))
        marks.append(branches.mark(machine))
    branches.keep_apart(machine, marks)
    machine.merge([*rows, (RUNS_ON, {}, "all")])
    return RUNS_ON


_STATEMENTS: dict[type, Callable[[Machine, Any], Outcome]] = {
    syntax.Expr: _expr,
    syntax.Assign: _assign,
    syntax.AugAssign: _augment,
    syntax.If: _if,
    syntax.For: _for,
    syntax.While: loops.walk_while,
    syntax.With: _with,
    syntax.Try: _try,
    syntax.Return: _return,
    syntax.Raise: _raise,
    syntax.Break: _leave_loop,
    syntax.Continue: _leave_loop,
    syntax.FunctionDef: _define,
    syntax.ClassDef: _class,
    syntax.Import: _import,
    syntax.ImportFrom: _import,
    syntax.Global: _global,
    syntax.Assert: _assert,
    syntax.Match: _match,
}
_DEFINITIONS = (syntax.FunctionDef, syntax.ClassDef)
