"""What expressions evaluate to."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from validate_ddp.interpreter import arithmetic, calls, conditions, gradients, narrowing, presence, roles, turns
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import RUNS_ON, Machine, Outcome, Scope
from validate_ddp.interpreter.objects import (
    Container,
    Dict,
    Length,
    List,
    Namespace,
    Options,
    Sequence,
    Settings,
    Tuple,
    one_more,
)
from validate_ddp.interpreter.ranks import PARTIAL, Who, both
from validate_ddp.interpreter.sameness import differs_by_rank, is_alike
from validate_ddp.interpreter.training import Loaded, Loader
from validate_ddp.interpreter.values import (
    UNKNOWN,
    Const,
    Function,
    Lazy,
    OnRanks,
    Opaque,
    Rank,
    RankTest,
    Resource,
    Symbol,
    Value,
    bare,
    carried_by,
    join,
    merged,
    on_ranks,
    reaching,
)
from validate_ddp.models import attributes, configuration, iteration, lengths

Node = list[Any]


def evaluate(machine: Machine, node: Node) -> Value:
    return _EXPRESSIONS[node[0]](machine, node)


def lookup(machine: Machine, name: str) -> Value:
    """The value of a name in the current frame; an unknown name is a builtin."""
    scope: Scope | None = machine.frames[-1].scope
    while scope is not None:
        found = scope.names.get(name)
        if found is not None:
            if found and type(found[0]) is Lazy:
                found = machine.library.forced(machine, scope.names, name)
            if (
                len(found) == 1 and type(found[0]) is not OnRanks
            ):  # the usual case, and this is the walk's busiest place
                if type(found[0]) is Opaque and found[0].name == "loaded":
                    for loaded in found[0].carries[:1]:
                        if isinstance(loaded, Loaded):
                            loaded.named = one_more(loaded.named)
                return found
            for atom in found:
                if type(atom) is OnRanks:
                    return here(machine, found)
            return found
        scope = scope.parent
    if name in _BUILTINS:
        return (Symbol("builtins." + name),)
    starred: Value | None = machine.library.starred(machine, machine.frame.module, name)
    return starred if starred is not None else (Symbol("builtins." + name),)


_BUILTINS = frozenset(dir(builtins))


def here(machine: Machine, value: Value) -> Value:
    """The alternatives that the ranks running this code can hold."""
    who = machine.who
    kept = tuple(a for a in value if not isinstance(a, OnRanks) or both(who, a.who) != "none")
    return kept or value


def _call(machine: Machine, node: Node) -> Value:
    return calls.call_node(machine, node)


def _attribute(machine: Machine, node: Node) -> Value:
    value: Value = ()
    receiver = machine.evaluate(node[1])
    if presence.marked(receiver):
        presence.note(machine, node[1], receiver, node[2], node[3])
    for atom in bare(receiver):
        value = join(value, attributes.get(machine, atom, node[2]))
    return value or UNKNOWN


def _fstring(machine: Machine, node: Node) -> Value:
    parts = [machine.evaluate(part) for part in node[1]]
    texts = [atom for part in parts for atom in part]
    name = "".join(str(atom.value) for atom in texts if isinstance(atom, Const))
    if all(isinstance(atom, Const) for atom in texts):
        return (Const(name),)
    return (Opaque(name, carried_by(texts), is_alike(tuple(texts))),)


def _sequence(machine: Machine, node: Node) -> Value:
    fields: dict[str, Value] = {}
    for item in node[2]:
        if item[0] == "star":
            value = machine.evaluate(item[1])
            held = value[0].fields if len(value) == 1 and isinstance(value[0], Resource) else {"*": ()}
            if "*" in held or "*" in fields or not isinstance(value[0], Sequence):
                fields["*"] = join(fields.get("*", ()), iteration.element(value))
            else:
                fields.update({str(len(fields) + index): part for index, part in enumerate(held.values())})
        else:
            fields[str(len(fields))] = machine.evaluate(item)
    return ((Tuple if node[1] == "tuple" else List)(machine.site(), fields),)


def _dict(machine: Machine, node: Node) -> Value:
    fields: dict[str, Value] = {}
    for key_node, value_node in zip(node[1], node[2], strict=True):
        value = machine.evaluate(value_node)
        if key_node is None:  # **other
            for atom in bare(value):
                if isinstance(atom, (Dict, Namespace)):
                    fields.update(atom.fields)
                elif isinstance(atom, Settings):
                    fields = {
                        name: configuration.overridable(name, held) for name, held in fields.items()
                    } | atom.fields
                else:
                    fields["*"] = join(fields.get("*", ()), value)
            continue
        key = iteration.key_of(machine.evaluate(key_node)) or "*"
        fields[key] = join(fields.get(key, ()), value) if key == "*" else value
    return (Dict(machine.site(), fields),)


def _conditional(machine: Machine, node: Node) -> Value:
    truth = conditions.test(machine, node[1])
    if truth is True or truth is False:
        with machine.flagged(Flag.CONDITIONAL):
            return machine.evaluate(node[2] if truth else node[3])
    return _either(machine, node[1], node[2], node[3], truth)


def _either(machine: Machine, test: Node, body: Node, orelse: Node, truth: conditions.Truth) -> Value:
    """Both alternatives of a condition that is not settled, each with the names narrowed by it."""
    rank_test = truth if isinstance(truth, RankTest) else RankTest("all", rest="all")
    results: list[Value] = []

    def run(part: Node, positive: bool, members: Who) -> Callable[[], Outcome]:
        def action() -> Outcome:
            narrowing.refine(machine, test, positive)
            with machine.guarded(members, sure=rank_test.sure), machine.flagged(Flag.CONDITIONAL):
                value = machine.evaluate(part)
            results.append(on_ranks(value, members, rank_test.sure) if members in PARTIAL else value)
            return RUNS_ON

        return action

    machine.try_out(run(body, True, rank_test.who))
    machine.try_out(run(orelse, False, rank_test.rest))
    return join(results[0], results[1])


_QUESTIONS = frozenset({"cmp", "not", "bool"})


def _boolean(machine: Machine, node: Node) -> Value:
    truth = conditions.test(machine, node)
    if isinstance(truth, RankTest) and (node[1] == "and" or any(part[0] in _QUESTIONS for part in node[2])):
        return (truth,)
    with machine.flagged(Flag.SHORTED):
        values = [machine.evaluate(part) for part in node[2]]
    if isinstance(truth, RankTest):
        return arithmetic.first_rank(values) or (truth,)
    if node[1] == "or":  # `a or b`: a unless it is false
        value: Value = ()
        for part in values:
            decided = conditions.truth_of(part)
            if decided is False:
                continue
            value = join(value, part)
            if decided is True:
                return value
        return value or values[-1]
    if truth is False:
        return (Const(False),)
    if all(isinstance(atom, Const) and isinstance(atom.value, bool) for part in values for atom in part):
        return conditions.as_value(truth)
    return values[-1] if truth is True else join(values[-1], (Opaque(),))


def _comparison(machine: Machine, node: Node) -> Value:
    truth, operands = conditions.compared(machine, node)
    if truth is not None:
        return conditions.as_value(truth)
    return (Opaque(turns.turn(machine, node) if machine.loops else "", carried_by(operands)),)


def _binary(machine: Machine, node: Node) -> Value:
    left, right = machine.evaluate(node[2]), machine.evaluate(node[3])
    if machine.gathers:
        total = gradients.arithmetic(machine, node[1], left, right)
        if total is not None:
            return total
    number = arithmetic.of_flags(node[1], left, right) or arithmetic.of_ranks(node[1], left, right)
    if number is not None:
        return number
    if len(left) == 1 and len(right) == 1 and isinstance(left[0], Const) and isinstance(right[0], Const):
        return arithmetic.of_constants(node[1], left[0].value, right[0].value)
    for value, other in ((left, right), (right, left)):
        lists = [atom for atom in bare(value) if isinstance(atom, List)]
        if lists and node[1] == "Add":
            items = join(iteration.element(value), iteration.element(other))
            return (List(machine.site(), {"*": items}),)
    name = "".join(
        str(atom.value) if isinstance(atom, Const) else getattr(atom, "name", "") or "" for atom in (*left, *right)
    )
    carries = carried_by((*left, *right))
    for part in carries:
        if type(part) is Length:
            carries = lengths.combined(node[1], left, right, carries)
            break
    return (Opaque(name[-200:], carries, is_alike(left) and is_alike(right)),)


def _subscript(machine: Machine, node: Node) -> Value:
    receiver, index = machine.evaluate(node[1]), machine.evaluate(node[2])
    key = iteration.key_of(index)
    value: Value = ()
    for atom in bare(receiver):
        value = join(value, _item(machine, atom, key, index))
    own = tuple(part.unlike() for part in reaching(index) if isinstance(part, Rank))
    if own:  # each rank its own: loaders[rank], files[rank::world_size]
        value = tuple(_of_a_rank(atom, index) for atom in bare(value))
        if not differs_by_rank(value):
            value = tuple(
                Opaque(atom.name, merged(*own, *atom.carries)) if isinstance(atom, Opaque) else atom
                for atom in bare(value)
            )
            value = value if differs_by_rank(value) else (*value, Opaque("", own))
    return value or UNKNOWN


def _of_a_rank(atom: Any, index: Value) -> Any:
    if not isinstance(atom, Loader):
        return atom
    own = atom.copy()
    own.derived = index
    return own


def _item(machine: Machine, atom: Any, key: str | None, index: Value) -> Value:
    if isinstance(atom, Symbol) and atom.name == "os.environ":
        return attributes.environment(machine, index)
    if isinstance(atom, (Container, Options)):
        if key is not None and key in atom.fields:
            return configuration.overridable(key, atom.fields[key]) if isinstance(atom, Settings) else atom.fields[key]
        if key is not None and key.lstrip("-").isdigit() and int(key) < 0 and "*" not in atom.fields:
            wanted = str(len(atom.fields) + int(key))
            if wanted in atom.fields:
                return atom.fields[wanted]
        if key is None and isinstance(atom, Dict):
            held: Value = ()
            for value in atom.fields.values():
                held = join(held, value)
            return held or UNKNOWN
        if key is None:
            return iteration.element((atom,))
        return atom.fields.get("*") or roles.suggested(key, alike=isinstance(atom, Options))
    if isinstance(atom, Opaque):
        found = roles.suggested(key or "", merged(*_picking(index), *atom.carries), is_alike((atom, *index)))
        return join(machine.settings[key], found) if key and atom.alike and key in machine.settings else found
    if isinstance(atom, Const):
        return (Opaque("", reaching(index)),)
    return attributes.item(machine, atom, key, index)


def _picking(index: Value) -> tuple[Any, ...]:
    """What an index brings into an item: `gpu_ids[rank]` differs from rank to rank, but is no rank itself."""
    return tuple(part.unlike() if type(part) is Rank else part for part in reaching(index))


def _lambda(machine: Machine, node: Node) -> Value:
    return (Function(machine.frame.module, node, machine.frame.scope),)


def _comprehension(machine: Machine, node: Node) -> Value:
    frame = machine.frame
    outer = frame.scope
    frame.scope = Scope({}, outer)
    try:
        from validate_ddp.interpreter.binding import assign

        listed = _listed(machine, node)
        if listed is not None:
            return listed
        sources: Value = ()
        for target, iterated, tests in node[3]:
            value = machine.evaluate(iterated)
            sources += value
            iteration.note(machine, value, machine.site())
            assign(machine, target, iteration.element(value))
            for test in tests:
                conditions.test(machine, test)
        items = [machine.evaluate(item) for item in node[2]]
    finally:
        frame.scope = outer
    carried = carried_by(sources)
    element = items[-1]
    if carried and all(isinstance(atom, (Opaque, Const)) for atom in element):
        element = (Opaque("", carried_by((*element, *sources))),)
    return ((Dict if node[1] == "dict" else List)(machine.site(), {"*": element}),)


_MOST_LISTED = 8


def _listed(machine: Machine, node: Node) -> Value | None:
    """A comprehension over a short literal, item by item; None for any other."""
    from validate_ddp.interpreter.binding import assign

    target, iterated, tests = node[3][0]
    if len(node[3]) > 1 or tests or iterated[0] != "seq" or not 0 < len(iterated[2]) <= _MOST_LISTED:
        return None
    fields: dict[str, Value] = {}
    for item in iterated[2]:
        assign(machine, target, machine.evaluate(item))
        values = [machine.evaluate(part) for part in node[2]]
        key = iteration.key_of(values[0]) if node[1] == "dict" else str(len(fields))
        fields[key or "*"] = values[-1]
    return ((Dict if node[1] == "dict" else List)(machine.site(), fields),)


def _walrus(machine: Machine, node: Node) -> Value:
    value = machine.evaluate(node[2])
    machine.write(machine.frame.scope.names, node[1], value)
    return value


def _yield(machine: Machine, node: Node) -> Value:
    star = node[1][0] == "star"
    value = machine.evaluate(node[1][1] if star else node[1])
    if star:
        iteration.note(machine, value, machine.site(), "yield from")
    machine.frame.yielded = join(machine.frame.yielded, iteration.element(value) if star else value)
    return UNKNOWN


def _other(machine: Machine, node: Node) -> Value:
    return (Opaque("", carried_by(atom for part in node[1] for atom in machine.evaluate(part))),)


_EXPRESSIONS: dict[str, Callable[[Machine, Node], Value]] = {
    "name": lambda machine, node: lookup(machine, node[1]),
    "const": lambda machine, node: (Const(node[1]),),
    "attr": _attribute,
    "call": _call,
    "fstr": _fstring,
    "seq": _sequence,
    "dict": _dict,
    "cond": _conditional,
    "bool": _boolean,
    "not": lambda machine, node: conditions.as_value(conditions.test(machine, node)),
    "cmp": _comparison,
    "bin": _binary,
    "sub": _subscript,
    "lambda": _lambda,
    "comp": _comprehension,
    "walrus": _walrus,
    "star": lambda machine, node: machine.evaluate(node[1]),
    "yield": _yield,
    "other": _other,
}
