"""Numbers that sum up what a model did on the batches of a loader: where they come from, and where they end."""

from __future__ import annotations

from typing import Any

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.marks import Agreed, Reduced, Rooted, Summed, Trimmed
from validate_ddp.interpreter.names_of_training import AGGREGATE, LOSS, MODULE, REPORTS
from validate_ddp.interpreter.objects import Batch, Container, Dict, List, Output
from validate_ddp.interpreter.values import (
    Const,
    Instance,
    Opaque,
    Rank,
    Site,
    Symbol,
    Value,
    WorldSize,
    bare,
    carried_by,
    join,
    merged,
)
from validate_ddp.source.syntax import Assign, Attribute, BinOp, Constant, Expression, JoinedStr
from validate_ddp.source.syntax import Call as CallNode
from validate_ddp.source.syntax import Tuple as TupleNode
from validate_ddp.source.traversal import is_same, walk, words_of

_DEEPEST = 3
"""Dictionaries within each other that are gone through: one may hold itself."""
_NOWHERE = Site("", Span(0, 0, 0, 0), Span(0, 0, 0, 0), "")
SUMMED = Summed(_NOWHERE)
"""Carried by what was added up over the batches of a loop."""
REDUCED = Reduced(_NOWHERE)
"""Carried by what a collective, or something that may be one, was applied to."""
TRIMMED = Trimmed(_NOWHERE)
"""Carried by what was cut to a length that was worked out."""


def is_of_batches(carries: tuple[Any, ...]) -> bool:
    for part in carries:  # noqa: SIM110 - on the way of every call, where a generator costs thrice as much
        if type(part) is Batch:
            return True
    return False


def marked(value: Value, mark: Summed | Reduced | Trimmed) -> Value:
    """``value``, where it comes from batches, with a mark on it."""
    return tuple(
        Opaque(atom.name, with_mark(mark, atom.carries))
        if isinstance(atom, Opaque) and mark not in atom.carries and is_of_batches(atom.carries)
        else atom
        for atom in value
    )


def with_mark(mark: Summed | Reduced | Trimmed, carries: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is carried, with a mark before it; after a collective, also which of it that was: all there was then.

    Marks stand before what they are about, so that where too much is carried that goes first.
    """
    of = tuple(part for part in carries if isinstance(part, Output)) if mark is REDUCED else ()
    return merged(mark, Agreed(_NOWHERE, of=of), *carries) if of else merged(mark, *carries)


def trimmed(value: Value, bounds: Value) -> Value:
    """``predictions[:len(dataset)]``: what came of batches, cut to a length that is no constant."""
    return value if all(isinstance(atom, Const) for atom in bare(bounds)) else marked(value, TRIMMED)


def within(asked: Opaque) -> Opaque:
    """``numbers < len(dataset)``: which of a batch are no repeated ones."""
    return Opaque(asked.name, with_mark(TRIMMED, asked.carries)) if is_of_batches(asked.carries) else asked


def summed_up(machine: Machine, node: Assign, value: Value) -> Value:
    """What ``total = total + loss.item()`` gives in a loop: a sum over its batches. Not so ``x = x + layer(x)``, which
    was of a batch before."""
    if not machine.loops or len(node.targets) > 1 or not _adds_to(node.targets[0], node.value):
        return value
    return value if is_of_batches(carried_by(machine.evaluate(node.targets[0]))) else marked(value, SUMMED)


def _adds_to(target: Expression, value: Expression) -> bool:
    if not isinstance(value, BinOp) or value.op != "Add":
        return False
    return is_same(value.left, target) or is_same(value.right, target) or _adds_to(target, value.left)


def with_item(holder: Value, value: Value) -> Value:
    """An array one of whose items is now ``value``, a sum over batches; empty where it is nothing of the kind."""
    carries = carried_by(value)
    names = [atom.name for atom in holder if isinstance(atom, Opaque)]
    if SUMMED not in carries or len(names) < len(holder):
        return ()
    return (Opaque(names[0], merged(*carries, *carried_by(holder))),)


def aggregated(call: Call, carries: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the result of an unknown function carries: the mean of a list is a sum over its batches."""
    if not carries or not is_of_batches(carries):
        return carries
    if call.name == "append":  # of numpy: all batches so far
        return merged(SUMMED, *carries)
    if call.name in AGGREGATE.words and any(isinstance(atom, List) for atom in bare(call.given)):
        return merged(SUMMED, *carries)
    return carries


def reduced(call: Call, carries: tuple[Any, ...], *, in_place: bool = True) -> tuple[Any, ...]:
    """What comes out of a collective carries, whose arguments it may have changed in place.

    Where it surely has not, they are marked all the same, as what stands for the result; but they are still each
    rank's own.
    """
    for atom in _held(call.given):
        if isinstance(atom, Opaque) and is_of_batches(atom.carries):
            if in_place and not is_agreed(atom.carries):
                atom.carries = with_mark(REDUCED, atom.carries)
            elif REDUCED not in atom.carries:
                atom.carries = merged(REDUCED, *atom.carries)
    return with_mark(REDUCED, carries) if is_of_batches(carries) else carries


def is_agreed(carries: tuple[Any, ...]) -> bool:
    """Whether every output of a model that went into it has been through a collective, or none did but batches have."""
    agreed = {id(output) for part in carries if isinstance(part, Agreed) for output in part.of}
    own = [part for part in carries if isinstance(part, Output) and id(part) not in agreed]
    return REDUCED in carries and not own


def items_reduced(machine: Machine, call: Call) -> None:
    """A loop hands the items of a list to a collective, one value standing for all: each is changed in place."""
    if not machine.loops:
        return
    given = {id(part) for atom in bare(call.given) if isinstance(atom, Opaque) for part in atom.carries}
    for value in tuple(machine.frame.scope.names.values()) if given else ():
        for holder in bare(value):
            if isinstance(holder, Container):
                items = [atom for atom in _held((holder,)) if isinstance(atom, Opaque) and is_of_batches(atom.carries)]
                if all(id(part) in given for item in items for part in item.carries):
                    for item in items:
                        item.carries = with_mark(REDUCED, item.carries)


def put_together(call: Call, value: Value) -> Value:
    """What a function gives back whose name says that it puts the ranks' values together, by files say: the walk has
    then lost sight of what went in."""
    if not is_of_batches(carried_by(call.given)) or is_of_batches(carried_by(value)):
        return value
    return join(value, (Opaque("", (REDUCED,)),))


def _held(value: Value) -> list[Any]:
    found = []
    for atom in bare(value):
        if isinstance(atom, Container):
            found += [part for field in atom.fields.values() for part in bare(field)]
        found.append(atom)
    return found


def collective_in_method(machine: Machine) -> None:
    """A collective runs: the objects in whose methods it does may hold the numbers of all ranks from here on."""
    for frame in machine.frames:
        bound = frame.function.bound if frame.function is not None else None
        if isinstance(bound, Instance) and "*given" in bound.fields:
            machine.write(bound.fields, "*given", marked(bound.fields["*given"], REDUCED))


def taken_in(machine: Machine, holder: Any, carries: tuple[Any, ...], mark: Summed | Reduced = SUMMED) -> None:
    """A method that is not walked was given something of a batch: what its object says afterwards comes from it."""
    if not isinstance(holder, Instance) or not is_of_batches(carries):
        return
    if any(isinstance(base, Symbol) and MODULE.matches(base.last) for base in holder.cls.lineage()):
        return  # a model forgets
    given = (Opaque("", with_mark(mark, carries)),)
    machine.write(holder.fields, "*given", join(holder.fields.get("*given", ()), given))


def told(holder: Instance, name: str) -> Value:
    """The field ``name`` of an object whose methods took in what came of batches."""
    return (Opaque(name, carried_by(holder.fields["*given"])),)


def report(machine: Machine, call: Call, value: Value = ()) -> None:
    """Record that a number summed up over batches is printed, logged, or steers a schedule."""
    if value:
        noted(machine, call.name, value, call.site)
    elif call.name in REPORTS.words:
        parts = _parts(machine, call) if SUMMED in carried_by(call.given) else ()
        if not parts:
            if not noted(machine, call.name, call.given, call.site) and tells_loss(machine, call):
                machine.record(facts.Report(call.name, value=call.given, part=0), call.site)
            return
        for index, part in enumerate(parts):
            noted(machine, call.name, part, call.site, index)


def _parts(machine: Machine, call: Call) -> list[Value]:
    """The sums told of in one line, one by one: arguments, what stands in a text, the entries of a dictionary. Nothing
    for a single argument, nor where a rank is told too: that is beside all of them."""
    if any(isinstance(part, Rank) for part in carried_by(call.given)):
        return []
    found: list[Value] = []
    for node, value in zip(call.node.args if call.node else (), call.args, strict=False):
        inside = _in_text(node)
        found += [machine.evaluate(part) for part in inside] if inside else _entries(value)
    found += [entry for value in call.keywords.values() for entry in _entries(value)]
    summed = [part for part in found if SUMMED in carried_by(part)]
    return summed if len(summed) > 1 or len(found) > len(call.args) + len(call.keywords) else []


def _in_text(node: Expression) -> list[Expression]:
    """What is put into a text: by an f-string, by ``format``, by ``%``."""
    if isinstance(node, JoinedStr):
        return node.values
    if isinstance(node, CallNode) and isinstance(node.func, Attribute) and node.func.attr == "format":
        return [*node.args, *(each.value for each in node.keywords)]
    if isinstance(node, BinOp) and node.op == "Mod" and isinstance(node.left, (Constant, JoinedStr)):
        return node.right.elts if isinstance(node.right, TupleNode) else [node.right]
    return []


def _entries(value: Value, depth: int = 0) -> list[Value]:
    """What a dictionary holds, one by one; anything else as it is."""
    if len(value) == 1 and type(value[0]) is Dict and depth < _DEEPEST:
        return [held for field in value[0].fields.values() for held in _entries(field, depth + 1)]
    return [value]


def tells_loss(machine: Machine, call: Call) -> bool:
    """Whether a call in a loop is given something of a batch, and what is called a loss."""
    if not machine.loops or call.node is None or not is_of_batches(carried_by(call.given)):
        return False
    told = walk([*call.node.args, *(each.value for each in call.node.keywords)])
    return any(LOSS.matches(word) for word in words_of(told))


def decided(machine: Machine, value: Value) -> None:
    """Record that a condition which cannot be settled hangs on a number summed up over batches, or on one rank's."""
    rooted(machine, "if", value)
    for atom in value:
        if type(atom) is Opaque and SUMMED in atom.carries:
            machine.record(facts.Decision("if", value=value), machine.site())
            return


def rooted(machine: Machine, name: str, value: Value) -> None:
    """Record that something hangs on the result of a collective that one rank has."""
    found = tuple(part for atom in value if type(atom) is Opaque for part in atom.carries if type(part) is Rooted)
    if found:
        machine.record(facts.RootedDecision(name, result=found), machine.site())


def noted(machine: Machine, name: str, value: Value, site: Site, part: int = 0) -> bool:
    """Record a report of ``value`` if it is a sum over batches; ``part`` tells several of one place apart."""
    carries = carried_by(value)
    if SUMMED not in carries and not any(isinstance(part, Instance) and "*given" in part.fields for part in carries):
        return False
    machine.record(facts.Report(name, value=value, part=part), site)
    return True


def divided(machine: Machine, value: Value, by: Value) -> None:
    """Record that a number of a batch is divided by the number of ranks."""
    if any(type(atom) is WorldSize for atom in bare(by)) and is_of_batches(carried_by(value)):
        machine.record(facts.Division("division", value=value, by=by), machine.site())
