"""Counts that a loop makes of what is in a rank's own batch: `if mask[i] == 0: continue`, then `count += 1`."""

from __future__ import annotations

from validate_ddp.interpreter import gradients, metrics
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.marks import Tallied
from validate_ddp.interpreter.objects import Batch
from validate_ddp.interpreter.values import Opaque, Value, carried_by, merged
from validate_ddp.source.syntax import Attribute, AugAssign, Call, Compare, Constant, Expression, Name, Not, Subscript

_OF_VALUES = frozenset("Eq NotEq Lt LtE Gt GtE".split())
"""Comparisons of what a batch holds; whether it has something (`in`, `is`) may be alike on all ranks."""


def note(machine: Machine, test: Expression) -> None:
    """Remember a condition of unknown truth that hangs on what is in a batch, where losses may be computed."""
    if not machine.loops or gradients.is_off(machine):
        return
    test = test.operand if isinstance(test, Not) else test
    if not isinstance(test, Compare) or not _OF_VALUES.issuperset(test.ops):
        return
    asked = _named(test.left)
    if asked is not None:
        of_batch = tuple(part for part in carried_by(machine.evaluate(asked)) if isinstance(part, Batch))
        if of_batch:
            place = machine.site()
            machine.counts.tested[place.path, place.span.line] = of_batch


def _named(node: Expression) -> Expression | None:
    """What is asked, without `.item()` and the like: to evaluate that again does nothing."""
    while isinstance(node, Call) and isinstance(node.func, Attribute) and not node.args:
        node = node.func.value
    return node if isinstance(node, (Name, Attribute, Subscript)) else None


def added(machine: Machine, node: AugAssign, value: Value) -> Value:
    """What `+=` in a loop leaves: a count, where one is added under such a condition within the loop."""
    value = metrics.marked(value, metrics.SUMMED)
    if not machine.counts.tested or not isinstance(node.value, Constant) or node.value.value not in (1, 1.0):
        return value
    loop = machine.loops[-1].site
    for guard in machine.guards:
        of_batch = machine.counts.tested.get((guard.site.path, guard.site.span.line))
        inside = guard.site.path == loop.path and guard.site.span.line > loop.span.line
        if of_batch and guard.apart and inside:
            name = next((atom.name for atom in value if isinstance(atom, Opaque)), "")
            return (Opaque(name, merged(Tallied(guard.site), *of_batch, *carried_by(value))),)
    return value
