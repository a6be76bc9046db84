"""What statements do: branches, loops, early exits, and the names that they set."""

from __future__ import annotations

from typing import Any, Callable

from validate_ddp.catalogue import Span
from validate_ddp.program import conditions, ranks, roles
from validate_ddp.program.facts import Loop
from validate_ddp.program.library import contexts, iteration
from validate_ddp.program.machine import RUNS_ON, Machine, Outcome, Scope
from validate_ddp.program.values import (
    UNKNOWN,
    Class,
    Const,
    Function,
    Instance,
    ModuleRef,
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


def assign(machine: Machine, target: Node, value: Value) -> None:
    """Bind a target: a name, a field, an item, or a tuple of targets."""
    kind = target[0]
    if kind == "name":
        scope = machine.frame.scope
        if target[1] in scope.outer:
            scope = _home(scope, target[1])
        machine.write(scope.names, target[1], roles.named(target[1], value))
    elif kind == "attr":
        for atom in bare(machine.evaluate(target[1])):
            if isinstance(atom, (Instance, Resource)):
                machine.write(atom.fields, target[2], roles.named(target[2], value))
            elif isinstance(atom, ModuleRef):
                machine.write(atom.module.scope.names, target[2], roles.named(target[2], value))
            elif isinstance(atom, Class):
                machine.write(atom.members, target[2], value)
            elif isinstance(atom, Symbol):  # a field of a configuration object whose file is not there
                machine.write(machine.environment, f"{atom.name}.{target[2]}", roles.named(target[2], value))
    elif kind == "sub":
        _assign_item(machine, target, value)
    elif kind == "seq":
        _unpack(machine, target[2], value)
    elif kind == "star":
        assign(machine, target[1], (Opaque("", carried_by(value)),))


def _home(scope: Scope, name: str) -> Scope:
    current = scope.parent
    while current is not None and name not in current.names and current.parent is not None:
        current = current.parent
    return current or scope


def _assign_item(machine: Machine, target: Node, value: Value) -> None:
    key_value = machine.evaluate(target[2])
    for atom in bare(machine.evaluate(target[1])):
        if isinstance(atom, Resource) and atom.kind in ("dict", "list", "namespace"):
            key = iteration.key_of(key_value)
            if key is None:  # an unknown key: any item may be the one
                machine.write(atom.fields, "*", join(atom.fields.get("*", ()), value))
                for known, old in list(atom.fields.items()):
                    machine.write(atom.fields, known, join(old, value))
            else:
                machine.write(atom.fields, key, roles.named(key, value))
        elif isinstance(atom, Symbol) and atom.name == "os.environ":
            machine.write(machine.environment, str(iteration.key_of(key_value)), value)


def _unpack(machine: Machine, targets: list[Node], value: Value) -> None:
    count = len(targets)
    starred = any(target[0] == "star" for target in targets)
    parts: list[Value] = [()] * count
    for atom in bare(value):
        if isinstance(atom, Resource) and atom.kind in ("tuple", "list") and "*" not in atom.fields and not starred:
            for index in range(count):
                parts[index] = join(parts[index], atom.fields.get(str(index), UNKNOWN))
        else:
            element = iteration.element((atom,))
            for index in range(count):
                parts[index] = join(parts[index], element)
    for target, part in zip(targets, parts):
        assign(machine, target, part or UNKNOWN)


def _expr(machine: Machine, node: Node) -> Outcome:
    machine.evaluate(node[2])
    if node[2][0] == "call" and _leaves(node[2][1]):
        return Outcome("raise")
    return RUNS_ON


_EXITS = (["name", "exit"], ["name", "quit"])


def _leaves(function: Node) -> bool:
    if function in _EXITS:
        return True
    return function[0] == "attr" and [function[1], function[2]] in ([["name", "sys"], "exit"], [["name", "os"], "_exit"])


def _assign(machine: Machine, node: Node) -> Outcome:
    value = machine.evaluate(node[3])
    for target in node[2]:
        assign(machine, target, value)
    return RUNS_ON


def _augment(machine: Machine, node: Node) -> Outcome:
    value = machine.evaluate(["bin", node[3], node[2], node[4]])
    for atom in bare(machine.evaluate(node[2])):
        if isinstance(atom, Resource) and atom.kind == "list":  # `items += more` keeps the list and its items
            machine.write(atom.fields, "*", join(atom.fields.get("*", ()), iteration.element(machine.evaluate(node[4]))))
            return RUNS_ON
    assign(machine, node[2], value)
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
    other = truth.rest if isinstance(truth, RankTest) else "all"

    def branch(body: list[Node], positive: bool, members: str) -> Callable[[], Outcome]:
        def run() -> Outcome:
            conditions.refine(machine, node[2], positive)
            with machine.guarded(members, site), machine.flagged(*flags):
                return walk(machine, body)

        return run

    first, changes = machine.try_out(branch(node[3], True, who))
    second, other_changes = machine.try_out(branch(node[4], False, other))
    machine.merge([(first, changes, who), (second, other_changes, other)])
    return _joined(first, who, second, other)


def _joined(first: Outcome, who: str, second: Outcome, other: str) -> Outcome:
    if first.ends and second.ends:
        return Outcome("loop" if "loop" in (first.ends, second.ends) else first.ends)
    if first.ends and who != "all":
        return Outcome("", other, "loop" if first.ends == "loop" else "return")
    if second.ends and who != "all":
        return Outcome("", who, "loop" if second.ends == "loop" else "return")
    return RUNS_ON


def _loop_outcome(machine: Machine, inside: Outcome) -> Outcome:
    """What an early exit in a loop's body means behind the loop."""
    if inside.until == "return" and inside.rest in ranks.PARTIAL:
        return Outcome("", inside.rest, "return")
    return RUNS_ON


def _for(machine: Machine, node: Node) -> Outcome:
    _, _, target, iterated, body, orelse = node
    value = machine.evaluate(iterated)
    machine.activations += 1
    iteration.note(machine, value, machine.site(node[1]), "for", machine.activations)
    counts, once = iteration.counting(iterated, value)
    name = target[1] if target[0] == "name" else ""
    loop = Loop(machine.site(node[1]), name, counts, once, machine.activations)
    element = iteration.element(value)
    if target[0] == "name" and counts:
        element = (Opaque(target[1]),)

    def run() -> Outcome:
        assign(machine, target, element)
        with machine.looping(loop):
            return walk(machine, body)

    # A failed try_out puts names back as they were: the loop's effects are joined with those of no iteration.
    outcome, changes = machine.try_out(run)
    machine.merge([(Outcome("", outcome.rest), changes, "all"), (RUNS_ON, {}, "all")])
    if loop.counts and not loop.once and loop.target:
        _note_epochs(machine, loop, body)
    walk(machine, orelse)
    return _loop_outcome(machine, outcome)


def _note_epochs(machine: Machine, loop: Loop, body: list[Node]) -> None:
    """Record a counting loop with the names in it that hold a loader or a sampler: there its epoch can be set."""
    named = dict(machine.frame.scope.names)
    for atom in bare(named.get("self", ())):
        if isinstance(atom, Instance):
            named.update({f"self.{field}": value for field, value in atom.fields.items()})
    kinds = ("loader", "sampler", "batch_sampler")
    held = {
        name: value
        for name, value in named.items()
        if value and all(isinstance(atom, Resource) and atom.kind in kinds for atom in value)
    }
    if held:
        machine.record("epoch_loop", loop.target, loop.site, body=(Const(tuple(body[0][1])),), **held)
def _while(machine: Machine, node: Node) -> Outcome:
    truth = conditions.test(machine, node[2])
    if truth is False:
        return walk(machine, node[4])
    machine.activations += 1
    loop = Loop(machine.site(node[1]), "", True, False, machine.activations)
    who = truth.who if isinstance(truth, RankTest) else "all"

    def run() -> Outcome:
        with machine.looping(loop), machine.guarded(who):
            return walk(machine, node[3])

    outcome, changes = machine.try_out(run)
    machine.merge([(Outcome("", outcome.rest), changes, "all"), (RUNS_ON, {}, "all")])
    walk(machine, node[4])
    if truth is True and outcome.ends in ("return", "raise"):
        return Outcome(outcome.ends)
    return _loop_outcome(machine, outcome)


def _with(machine: Machine, node: Node) -> Outcome:
    entered = []
    try:
        for context, target in node[2]:
            value = machine.evaluate(context)
            manager = contexts.entering(machine, value)
            held = manager.__enter__()
            entered.append(manager)
            if target is not None:
                assign(machine, target, held)
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
    rows = [(outcome, {}, "all")]
    for kind, name, handler in handlers:

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


def _define(machine: Machine, node: Node) -> Outcome:
    function = Function(machine.frame.module, node, machine.frame.scope)
    machine.write(machine.frame.scope.names, node[2], roles.decorated(machine, function, node[5]))
    return RUNS_ON


def _class(machine: Machine, node: Node) -> Outcome:
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
    rows = []
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
    "while": _while,
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
