"""What expressions evaluate to."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from validate_ddp.interpreter import (
    arithmetic,
    attributes,
    calls,
    candidates,
    comprehensions,
    conditions,
    configuration,
    defaulting,
    gradients,
    iteration,
    lengths,
    metrics,
    narrowing,
    presence,
    roles,
    shares,
    turns,
)
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import RUNS_ON, Machine, Outcome, Scope
from validate_ddp.interpreter.names import MESH
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
    ModuleRef,
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
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Expression


def evaluate(machine: Machine, node: Expression) -> Value:
    return _EXPRESSIONS[type(node)](machine, node)


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


def _attribute(machine: Machine, node: syntax.Attribute) -> Value:
    value: Value = ()
    receiver = machine.evaluate(node.value)
    presence.taken(machine, node.value, receiver, node.attr, node.span)
    for atom in bare(receiver):
        value = join(value, attributes.get(machine, atom, node.attr))
    return value or UNKNOWN


def _fstring(machine: Machine, node: syntax.JoinedStr) -> Value:
    return arithmetic.text(machine.site(), [machine.evaluate(part) for part in node.values])


def _sequence(machine: Machine, node: syntax.Tuple | syntax.List) -> Value:
    fields: dict[str, Value] = {}
    for item in node.elts:
        if isinstance(item, syntax.Starred):
            value = machine.evaluate(item.value)
            held = value[0].fields if len(value) == 1 and isinstance(value[0], Resource) else {"*": ()}
            if "*" in held or "*" in fields or not isinstance(value[0], Sequence):
                fields["*"] = join(fields.get("*", ()), iteration.element(value))
            else:
                fields.update({str(len(fields) + index): part for index, part in enumerate(held.values())})
        else:
            fields[str(len(fields))] = machine.evaluate(item)
    return ((Tuple if isinstance(node, syntax.Tuple) else List)(machine.site(), fields),)


def _dict(machine: Machine, node: syntax.Dict) -> Value:
    fields: dict[str, Value] = {}
    for key_node, value_node in zip(node.keys, node.values, strict=True):
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


def _conditional(machine: Machine, node: syntax.IfExp) -> Value:
    truth = conditions.test(machine, node.test)
    if truth is True or truth is False:
        with machine.flagged(Flag.CONDITIONAL):
            return machine.evaluate(node.body if truth else node.orelse)
    return _either(machine, node, truth)


def _either(machine: Machine, node: syntax.IfExp, truth: conditions.Truth) -> Value:
    """Both alternatives of a condition that is not settled, each with the names narrowed by it."""
    rank_test = truth if isinstance(truth, RankTest) else RankTest("all", rest="all")
    results: list[Value] = []

    def run(part: Expression, positive: bool, members: Who) -> Callable[[], Outcome]:
        def action() -> Outcome:
            narrowing.refine(machine, node.test, positive)
            with machine.guarded(members, sure=rank_test.sure), machine.flagged(Flag.CONDITIONAL):
                value = machine.evaluate(part)
            results.append(on_ranks(value, members, rank_test.sure) if members in PARTIAL else value)
            return RUNS_ON

        return action

    machine.try_out(run(node.body, True, rank_test.who))
    machine.try_out(run(node.orelse, False, rank_test.rest))
    return join(results[0], results[1])


_QUESTIONS = (syntax.Compare, syntax.Not, syntax.BoolOp)


def _boolean(machine: Machine, node: syntax.BoolOp) -> Value:
    truth = conditions.test(machine, node)
    if isinstance(truth, RankTest) and (node.op == "And" or any(isinstance(part, _QUESTIONS) for part in node.values)):
        return (truth,)
    with machine.flagged(Flag.SHORTED):
        values = [machine.evaluate(part) for part in node.values]
    if isinstance(truth, RankTest):
        return arithmetic.first_rank(values) or (truth,)
    if node.op == "Or":  # `a or b`: a unless it is false
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


def _comparison(machine: Machine, node: syntax.Compare) -> Value:
    truth, operands = conditions.compared(machine, node)
    if truth is not None:
        return conditions.as_value(truth)
    return (shares.compared(machine, turns.turn(machine, node) if machine.loops else "", operands),)


def _binary(machine: Machine, node: syntax.BinOp) -> Value:
    left, right = machine.evaluate(node.left), machine.evaluate(node.right)
    if machine.gathers:
        total = gradients.arithmetic(machine, node.op, left, right)
        if total is not None:
            return total
    number = arithmetic.of_flags(node.op, left, right) or arithmetic.of_ranks(node.op, left, right)
    if number is not None:
        return number
    if len(left) == 1 and len(right) == 1 and isinstance(left[0], Const) and isinstance(right[0], Const):
        return arithmetic.of_constants(node.op, left[0].value, right[0].value)
    if node.op == "BitOr" and (merged_dict := _merged(machine, left, right)):
        return merged_dict
    for value, other in ((left, right), (right, left)):
        lists = [atom for atom in bare(value) if isinstance(atom, List)]
        if lists and node.op == "Add":
            items = join(iteration.element(value), iteration.element(other))
            return (List(machine.site(), {"*": items}),)
    name = "".join(
        str(atom.value) if isinstance(atom, Const) else getattr(atom, "name", "") or "" for atom in (*left, *right)
    )
    if node.op == "Mod" and machine.loops and turns.leaves_over(left, right):
        name = turns.REMAINDER
    carries = carried_by((*left, *right))
    if node.op == "Div" and carries:
        metrics.divided(machine, left, right)
    for part in carries:
        if type(part) is Length:
            carries = lengths.combined(node.op, left, right, carries)
            break
    made = Opaque(name[-200:], carries, is_alike(left) and is_alike(right))
    return (shares.operated(machine, node.op, left, right, made) if carries else made,)


def _merged(machine: Machine, left: Value, right: Value) -> Value:
    """``{...} | {...}``: the items of both, those on the right last; nothing for what is no dictionary."""
    first, second = (value[0] if len(value) == 1 else None for value in (left, right))
    if not isinstance(first, Dict) or not isinstance(second, Dict):
        return ()
    return (Dict(machine.site(), {**first.fields, **second.fields}),)


def _subscript(machine: Machine, node: syntax.Subscript) -> Value:
    receiver, index = machine.evaluate(node.value), machine.evaluate(node.slice)
    key = iteration.key_of(index)
    value: Value = ()
    for atom in bare(receiver):
        value = join(value, _item(machine, atom, key, index))
    if type(node.slice) is syntax.Other:
        value = metrics.trimmed(value, index)
    value = shares.picked(machine, node, receiver, index, value)
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
            return defaulting.looked_up(machine, atom) or UNKNOWN
        if isinstance(atom, Dict):
            defaulting.complete(machine, atom, key)
        if key is not None and key in atom.fields:
            return atom.fields[key]
        if key is None:
            return iteration.element((atom,))
        if atom.fields.get("*"):
            return iteration.picked(machine, atom.fields["*"])
        return roles.suggested(key, alike=isinstance(atom, Options))
    if isinstance(atom, Opaque) and MESH.matches(atom.name):
        return (atom,)  # one or some of its dimensions
    if isinstance(atom, Opaque):
        found = roles.suggested(key or "", merged(*_picking(index), *atom.carries), is_alike((atom, *index)))
        return join(machine.settings[key], found) if key and atom.alike and key in machine.settings else found
    if isinstance(atom, Const):
        return (Opaque("", reaching(index)),)
    if isinstance(atom, ModuleRef):  # `globals()[name]`
        return attributes.get(machine, atom, key) if key else candidates.of_module(machine, atom.module) or UNKNOWN
    return attributes.item(machine, atom, key, index)


def _picking(index: Value) -> tuple[Any, ...]:
    """What an index brings into an item: `gpu_ids[rank]` differs from rank to rank, but is no rank itself."""
    return tuple(part.unlike() if type(part) is Rank else part for part in reaching(index))


def _lambda(machine: Machine, node: syntax.Lambda) -> Value:
    machine.made.append(machine.frame.scope)
    return (Function(machine.frame.module, node, machine.frame.scope),)


def _walrus(machine: Machine, node: syntax.NamedExpr) -> Value:
    value = machine.evaluate(node.value)
    machine.write(machine.frame.scope.names, node.name, value)
    return value


def _yield(machine: Machine, node: syntax.Yield) -> Value:
    machine.frame.yielded = join(machine.frame.yielded, machine.evaluate(node.value))
    return UNKNOWN


def _yield_from(machine: Machine, node: syntax.YieldFrom) -> Value:
    value = machine.evaluate(node.value)
    iteration.note(machine, value, machine.site(), "yield from")
    machine.frame.yielded = join(machine.frame.yielded, iteration.element(value))
    return UNKNOWN


def _other(machine: Machine, node: syntax.Other) -> Value:
    values = [machine.evaluate(part) for part in node.parts]
    made = Opaque("", carried_by(atom for value in values for atom in value))
    return (shares.operated(machine, "BitAnd", values[0], (), made) if len(values) == 1 and made.carries else made,)


def _name(machine: Machine, node: syntax.Name) -> Value:
    value = lookup(machine, node.id)
    if presence.marked(value):
        presence.note_unbound(machine, node, value)
    return value


def _constant(machine: Machine, node: syntax.Constant) -> Value:
    return (Const(node.value),)


_EXPRESSIONS: dict[type, Callable[[Machine, Any], Value]] = {
    syntax.Name: _name,
    syntax.Constant: _constant,
    syntax.Attribute: _attribute,
    syntax.Call: calls.call_node,
    syntax.JoinedStr: _fstring,
    syntax.Tuple: _sequence,
    syntax.List: _sequence,
    syntax.Dict: _dict,
    syntax.IfExp: _conditional,
    syntax.BoolOp: _boolean,
    syntax.Not: arithmetic.negation,
    syntax.Compare: _comparison,
    syntax.BinOp: _binary,
    syntax.Subscript: _subscript,
    syntax.Lambda: _lambda,
    syntax.ListComp: comprehensions.evaluate,
    syntax.DictComp: comprehensions.evaluate,
    syntax.NamedExpr: _walrus,
    syntax.Starred: lambda machine, node: machine.evaluate(node.value),
    syntax.Yield: _yield,
    syntax.YieldFrom: _yield_from,
    syntax.Other: _other,
}
