"""Comprehensions and generator expressions: a walk over what they draw from, in a scope of their own."""

from __future__ import annotations

from validate_ddp.interpreter import binding, conditions, iteration
from validate_ddp.interpreter.machine import Machine, Scope
from validate_ddp.interpreter.objects import Dict, List
from validate_ddp.interpreter.values import Const, Opaque, RankTest, Value, carried_by, on_ranks
from validate_ddp.source import syntax


def evaluate(machine: Machine, node: syntax.ListComp | syntax.DictComp) -> Value:
    frame = machine.frame
    outer = frame.scope
    frame.scope = Scope({}, outer)
    try:
        listed = _listed(machine, node)
        if listed is not None:
            return listed
        sources: Value = ()
        truths: list[conditions.Truth] = []
        for clause in node.generators:
            value = machine.evaluate(clause.iter)
            sources += value
            iteration.note(machine, value, machine.site())
            binding.assign(machine, clause.target, iteration.element(value))
            truths += [conditions.test(machine, test) for test in clause.ifs]
        kept = conditions.all_of(truths) if truths else None
        who, sure = (kept.who, kept.sure) if isinstance(kept, RankTest) else ("all", True)
        with machine.guarded(who, sure=sure):
            _, element = _made(machine, node)
    finally:
        frame.scope = outer
    carried = carried_by(sources)
    if carried and all(isinstance(atom, (Opaque, Const)) for atom in element):
        element = (Opaque("", carried_by((*element, *sources))),)
    drawn = list(iteration.elements_by_rank(value)) if len(node.generators) == 1 else []
    if len(drawn) == 1:  # made of what some ranks alone have, it is theirs too
        element = on_ranks(element, *drawn[0])
    return (_made_by(node)(machine.site(), {"*": element}),)


def _made_by(node: syntax.ListComp | syntax.DictComp) -> type[Dict | List]:
    return Dict if isinstance(node, syntax.DictComp) else List


def _made(machine: Machine, node: syntax.ListComp | syntax.DictComp) -> tuple[Value, Value]:
    """The key, nothing for a list, and the element that a comprehension makes in its turn."""
    if isinstance(node, syntax.DictComp):
        return machine.evaluate(node.key), machine.evaluate(node.value)
    return (), machine.evaluate(node.elt)


_MOST_LISTED = 8


def _listed(machine: Machine, node: syntax.ListComp | syntax.DictComp) -> Value | None:
    """A comprehension over a short literal, item by item; None for any other."""
    clause = node.generators[0]
    if len(node.generators) > 1 or clause.ifs or not isinstance(clause.iter, (syntax.Tuple, syntax.List)):
        return None
    if not 0 < len(clause.iter.elts) <= _MOST_LISTED:
        return None
    fields: dict[str, Value] = {}
    for item in clause.iter.elts:
        binding.assign(machine, clause.target, machine.evaluate(item))
        key_value, value = _made(machine, node)
        key = iteration.key_of(key_value) if isinstance(node, syntax.DictComp) else str(len(fields))
        fields[key or "*"] = value
    return (_made_by(node)(machine.site(), fields),)
