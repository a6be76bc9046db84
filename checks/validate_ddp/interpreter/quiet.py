"""Which ranks still print once a script has put a function of its own in the place of ``print``.

Helpers that start the process group often do so: ``builtins.print = print``, with one that prints on rank zero only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from validate_ddp.interpreter import ranks
from validate_ddp.interpreter.machine import Frame, Machine, Pushed
from validate_ddp.interpreter.ranks import Who
from validate_ddp.interpreter.values import Function, RankTest, Site, Value, bare
from validate_ddp.source.syntax import BoolOp, Call, Expression, FunctionDef, If
from validate_ddp.source.traversal import walk

PRINT = "builtins.print"
_OPTIONS = frozenset("sep end file flush".split())


class Printing(NamedTuple):
    """Which ranks print, where that was decided, and whether it is no guess from a name."""

    who: Who
    site: Site
    sure: bool


def replaced(machine: Machine, value: Value) -> None:
    """Note that ``print`` is replaced by ``value`` from here on."""
    for atom in bare(value):
        if not isinstance(atom, Function) or not isinstance(atom.node, FunctionDef):
            continue
        if not any(isinstance(part, Call) for part in walk(atom.node.body)):  # it does nothing
            if machine.who in ranks.PARTIAL:
                machine.printing = Printing(ranks.opposite(machine.who), machine.site(), machine.sure)
            continue
        test = _rank_test(machine, atom, atom.node)
        if test is not None and machine.who == "all":
            machine.printing = Printing(test.who, machine.site(), test.sure)


def _rank_test(machine: Machine, function: Function, node: FunctionDef) -> RankTest | None:
    """The condition on the rank under which the function goes on to print: ``if is_master or force:``."""
    machine.frames.append(Frame(function.module, function.scope, None, None))
    try:
        for part in walk(node.body):
            for asked in _alternatives(part.test) if isinstance(part, If) and not part.orelse else ():
                for atom in bare(machine.evaluate(asked)):
                    if isinstance(atom, RankTest) and atom.who in ranks.PARTIAL:
                        return atom
    finally:
        machine.frames.pop()
    return None


def _alternatives(test: Expression) -> list[Expression]:
    return test.values if isinstance(test, BoolOp) and test.op == "Or" else [test]


def kept_to_printing(machine: Machine, name: str, options: Iterable[str]) -> Pushed:
    """Code of a call of the function with this dotted name: of ``print``, what only the ranks run that still print. One
    with an option that ``print`` itself has not, as ``force=True``, may be meant for all."""
    held = machine.printing if name == PRINT and _OPTIONS.issuperset(options) else None
    return machine.guarded(held.who, held.site, sure=held.sure) if held is not None else Pushed(machine.guards, ())
