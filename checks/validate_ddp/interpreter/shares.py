"""What a loss is divided by: masks of a batch, and counts of what they let through, which each rank has of its own."""

from __future__ import annotations

from typing import Any

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts, gradients, metrics
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.marks import Apportioned, Averaged, Ignored, Reduced, Row, Summed, Tallied
from validate_ddp.interpreter.names_of_training import LENGTHS, MASK, MODULE
from validate_ddp.interpreter.objects import Batch, Enumerate, Length, Output, Tuple, Zip
from validate_ddp.interpreter.values import (
    Const,
    Instance,
    Opaque,
    Site,
    Symbol,
    Value,
    bare,
    carried_by,
    join,
    merged,
    reaching,
)
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Attribute, Subscript
from validate_ddp.source.traversal import last_name


class _Measured(Opaque):
    """What else is known of a tensor or a number; elsewhere it is as unknown as any other."""

    __slots__ = ()

    @property
    def measured(self) -> Value:
        """What it carries, as the walk asks what is no plain unknown."""
        return self.carries


class Mask(_Measured):
    """Which elements of a batch count."""

    __slots__ = ()


class Count(_Measured):
    """How many elements of a rank's own batch a mask lets through."""

    __slots__ = ()


class Picked(_Measured):
    """The elements of a tensor that a mask lets through, however many these are."""

    __slots__ = ()


_BY_ROWS = {"dim", "axis"}
"""Arguments by which each row has a number of its own."""
_COUNTING = frozenset("sum count_nonzero".split())
_COMPARING = frozenset("eq ne gt lt ge le not_equal greater less isfinite isnan logical_not bool".split())
_OF_MASKS = frozenset(
    """float int long bool byte half double to type type_as cuda detach clone contiguous view reshape flatten unsqueeze
    squeeze expand expand_as transpose permute repeat logical_not logical_and logical_or""".split()
)
_OF_COUNTS = frozenset(
    "item float int long double half to type type_as cuda detach clone clamp clamp_ clamp_min max maximum".split()
)
_OF_PICKED = frozenset("float double to abs pow square sqrt exp log neg sigmoid squeeze".split())
_BENDING = frozenset("abs pow square exp".split())
_RANKING = "argsort()"
_JOINING = ("BitAnd", "BitOr", "BitXor")
_LOSSES = ("loss", "cross_entropy", "cross_entropy_with_logits")
_ROW = Row(Site("", Span(0, 0, 0, 0), Span(0, 0, 0, 0), ""))
_WHOLE = (Mask, Count, Picked)
_CRITERION = "Loss()"
_FLATTENING = frozenset("view reshape flatten contiguous".split())


def compared(machine: Machine, name: str, operands: Value) -> Opaque:
    """What a comparison gives: of the elements of a batch that is trained on, a mask.

    By their place in an order, as many are let through on each rank.
    """
    carries = carried_by(operands)
    if any(isinstance(atom, Opaque) and _is_length(atom.carries) for atom in operands):
        return metrics.within(Opaque(name, carries))
    if name or not machine.loops or gradients.is_off(machine) or not _is_of_batch(carries):
        return Opaque(name, carries)
    if any(isinstance(atom, Opaque) and atom.name.endswith(_RANKING) for atom in operands):
        return Opaque(_RANKING, carries)
    return Mask("", carries)


def _is_length(carries: tuple[Any, ...]) -> bool:
    """Whether it is the length of a data set, and nothing of a batch."""
    kinds = {type(part) for part in carries}
    return Length in kinds and Batch not in kinds


def _is_of_batch(carries: tuple[Any, ...]) -> bool:
    kinds = {type(part) for part in carries}
    return Batch in kinds and Summed not in kinds and Row not in kinds


def operated(machine: Machine, operator: str, left: Value, right: Value, made: Opaque) -> Opaque:
    """What arithmetic on masks, counts and losses gives."""
    both = (*left, *right)
    if operator in _JOINING and any(_says_mask(atom) for atom in both):
        return Mask(made.name, made.carries)
    if operator == "Pow":
        return _bent(made)
    if operator == "Div" and any(map(_is_tally, right)):
        return _divided(machine, left, right, made)
    if not any(isinstance(atom, _WHOLE) for atom in both):
        return made
    if operator == "Div" and left and all(isinstance(atom, Count) for atom in left):
        return Count(made.name, made.carries)  # `count / total`: what the mean of a rank weighs
    if any(isinstance(atom, Count) for atom in right) and operator == "Div":
        return _divided(machine, left, right, made)
    if any(isinstance(atom, Picked) for atom in both):
        return Picked(made.name, made.carries)
    if any(isinstance(atom, Count) for atom in both):
        if operator == "Mult" and _has_share(made.carries):  # a mean times its count is the sum again
            return _bent(made)
        if all(isinstance(atom, (Count, Const)) for atom in both):
            return Count(made.name, made.carries)
        return made
    masks = [isinstance(atom, Mask) for atom in both]
    kept = any(masks) if operator in _JOINING else all(masks) and operator == "Mult"
    return Mask(made.name, made.carries) if kept else made


def _is_tally(atom: Any) -> bool:
    """Whether it is such a count, and no loss that one went into."""
    kinds = {type(part) for part in atom.carries} if type(atom) is Opaque else set()
    return Tallied in kinds and Output not in kinds


def _has_share(carries: tuple[Any, ...]) -> bool:
    return any(isinstance(part, Apportioned) for part in carries)


def _bent(made: Opaque) -> Opaque:
    """A share that is no part of a loss any more: weighed anew, or what was compared with it."""
    if not _has_share(made.carries):
        return made
    return Opaque(made.name, tuple(part for part in made.carries if not isinstance(part, Apportioned)), made.alike)


def _divided(machine: Machine, left: Value, right: Value, made: Opaque) -> Opaque:
    """A loss divided by a count, of which no collective has made that of all ranks."""
    if any(isinstance(part, Reduced) for part in carried_by(right)) or gradients.is_off(machine):
        return made
    if any(isinstance(atom, (Mask, Count)) for atom in left) or not _may_be_loss(machine, carried_by(left)):
        return made
    return _apportioned(machine, left, right, made)


def _apportioned(machine: Machine, value: Value, by: Value, made: Opaque) -> Opaque:
    site = machine.site()
    machine.record(facts.Division("share", value=value, by=by), site)
    return Opaque(made.name, merged(Apportioned(site), *made.carries))


def picked(machine: Machine, node: Subscript, receiver: Value, index: Value, value: Value) -> Value:
    """``losses[mask]``, and ``mask[:, 1:]``; ``mask[i]`` is that of one sample."""
    made: Value = ()
    if _counts_on(machine, index):
        return rows(value)
    name = last_name(node.slice) or ""
    if any(_is_mask(atom, name) or _says_mask(atom) for atom in bare(index)):
        made = tuple(Picked(atom.name, atom.carries) if type(atom) is Opaque else atom for atom in value)
    elif any(isinstance(atom, Mask) for atom in bare(receiver)):
        made = tuple(Mask(atom.name, atom.carries) if type(atom) is Opaque else atom for atom in value)
    return made or value


def _counts_on(machine: Machine, index: Value) -> bool:
    """Whether an index is what a loop counts, or begins with it."""
    first = index[0] if len(index) == 1 else None
    if isinstance(first, Tuple):
        return _counts_on(machine, first.fields.get("0", ()))
    counters = ("index", *(loop.target for loop in machine.loops))  # the first as `enumerate` gives it
    return type(first) is Opaque and first.name in counters and not first.carries and bool(first.name)


def rows(value: Value) -> Value:
    """What is one sample of what came of a batch: it has a number of elements of its own, wherever it is."""
    made: Value = ()
    for atom in bare(value):
        if isinstance(atom, Opaque) and any(type(part) is Batch for part in atom.carries):
            atom = Opaque(atom.name, merged(_ROW, *atom.carries), atom.alike)
        elif isinstance(atom, Tuple):
            atom = Tuple(atom.site, {name: rows(held) for name, held in atom.fields.items()})
        made = join(made, (atom,))
    return made or value


def drawn(value: Value, element: Value) -> Value:
    """What a loop over what a model gave binds: a sample in each turn, beside those of what is gone over with it."""
    held = [atom.fields.values() if isinstance(atom, (Enumerate, Zip)) else [(atom,)] for atom in bare(value)]
    given = [part for values in held for each in values for part in reaching(each)]
    return rows(element) if any(isinstance(part, Output) for part in given) else element


def called_on(machine: Machine, atom: Any, call: Call, made: Opaque) -> Opaque:
    """What a method of a tensor gives, of which the name alone is known."""
    name = call.name
    if name in _BENDING:
        made = _bent(made)
    if name in _COUNTING and not call.args and not _BY_ROWS & call.keywords.keys() and _masks(call, atom):
        return Count(made.name, made.carries)
    if isinstance(atom, Mask) and name in _OF_MASKS:
        return Mask(made.name, made.carries)
    if isinstance(atom, Count) and name in _OF_COUNTS:
        return Count(made.name, made.carries)
    if isinstance(atom, Picked):
        if name == "mean" and not call.args and not _BY_ROWS & call.keywords.keys():
            return _mean(machine, (atom,), made)
        return Picked(made.name, made.carries) if name in _OF_PICKED else made
    if name in _COMPARING and type(atom) is Opaque:
        return compared(machine, "", (Opaque(atom.name, made.carries), *call.given))
    if isinstance(atom, Opaque) and not any(atom is holder for holder in bare(call.receiver)):
        for part in atom.carries if atom.name.endswith(_CRITERION) else ():
            if isinstance(part, Averaged):
                return _criticised(machine, part, call, made)
    return made


def _criticised(machine: Machine, criterion: Averaged, call: Call, made: Opaque) -> Opaque:
    """What a criterion gives of what it is called with."""
    made = _bent(made)
    if any(isinstance(atom, Picked) for atom in call.given):
        return _mean(machine, call.given, made)
    return ignoring(machine, call, made, criterion.by) if isinstance(criterion, Ignored) else made


def called_with(machine: Machine, name: str, call: Call, made: Opaque) -> Opaque:
    """What a function of a library gives: ``torch.sum(mask)``, ``max(count, 1)``, ``F.l1_loss(x[mask], y[mask])``."""
    given = call.given
    last = name.rpartition(".")[2]
    if last in _BENDING or last.endswith(_LOSSES):
        made = _bent(made)
    if last in _COMPARING and name.startswith("torch."):
        return compared(machine, "", (Opaque("", made.carries),))
    if last in _COUNTING and len(call.args) == 1 and not _BY_ROWS & call.keywords.keys() and name.startswith("torch."):
        argument = call.node.args[0] if call.node and call.node.args else None
        if any(_counts(atom, argument) for atom in given):
            return Count(made.name, made.carries)
    if not any(isinstance(atom, _WHOLE) for atom in given):
        return made
    if any(isinstance(atom, Count) for atom in given) and last in ("max", "maximum", "clamp", "float", "int"):
        return Count(made.name, made.carries)
    if any(isinstance(atom, Mask) for atom in given) and last in _OF_MASKS:
        return Mask(made.name, made.carries)
    if any(isinstance(atom, Picked) for atom in given) and name.startswith("torch."):
        if (last == "mean" and len(call.args) == 1) or (last.endswith(_LOSSES) and "reduction" not in call.keywords):
            return _mean(machine, given, made)
        return Picked(made.name, made.carries) if last in _OF_PICKED or "reduction" in call.keywords else made
    return made


def _says_mask(atom: Any) -> bool:
    """What picks elements and is called so, whoever made it."""
    return type(atom) is Opaque and MASK.matches(atom.name) and _is_of_batch(atom.carries)


def _mean(machine: Machine, value: Value, made: Opaque) -> Opaque:
    """The mean of what a mask lets through: divided by how much that is."""
    carries = carried_by(value)
    if gradients.is_off(machine) or not _may_be_loss(machine, carries):
        return made
    return _apportioned(machine, value, value, made)


def _may_be_loss(machine: Machine, carries: tuple[Any, ...]) -> bool:
    """Whether the output of a model went into it, or it is computed from a batch within one."""
    if any(isinstance(part, Output) for part in carries):
        return True
    bound = [frame.function.bound for frame in machine.frames if frame.function is not None]
    models = (each for each in bound if isinstance(each, Instance))
    within = any(isinstance(b, Symbol) and MODULE.matches(b.last) for each in models for b in each.cls.lineage())
    return within and _is_of_batch(carries)


def ignoring(machine: Machine, call: Call, made: Opaque, by: Value) -> Opaque:
    """What a cross entropy of the mean gives: the targets of one class do not count in it. by: which, where that was
    said; else there are such targets where rows of tokens were made one, as far as is known."""
    carries = carried_by(call.given)
    if gradients.is_off(machine) or not _may_be_loss(machine, carries) or not (by or _is_flat(call)):
        return made
    site = machine.site()
    machine.record(facts.Division("ignored", value=call.given, by=by), site)
    return Opaque(made.name, merged(Apportioned(site), *made.carries))


def _is_flat(call: Call) -> bool:
    """Whether the targets are handed in as one row: ``labels.view(-1)``."""
    target = call.node.args[1] if call.node is not None and len(call.node.args) > 1 else None
    return isinstance(target, syntax.Call) and last_name(target.func) in _FLATTENING


def _masks(call: Call, atom: Any) -> bool:
    """Whether what a method is called on is a mask, or lengths."""
    function = call.node.func if call.node is not None else None
    return _counts(atom, function.value if isinstance(function, Attribute) else None)


def _counts(atom: Any, node: syntax.Expression | None) -> bool:
    """Whether the sum of a value is a count: of a mask, or of the lengths of what a batch holds."""
    if _is_mask(atom, (last_name(node) or "") if node is not None else ""):
        return True
    while isinstance(node, syntax.BinOp):  # `lengths - 1`
        node = node.left
    named = type(atom) is Opaque and node is not None and LENGTHS.matches(last_name(node) or "")
    return named and _is_of_batch(atom.carries) and not any(isinstance(part, Output) for part in atom.carries)


def _is_mask(atom: Any, name: str) -> bool:
    """What is computed, as by ``torch.ones(shape)``, may let as much through on each rank: what the data holds, not."""
    if isinstance(atom, Mask):
        return True
    if type(atom) is not Opaque or atom.name.endswith("()") or not MASK.matches(atom.name or name):
        return False
    return _is_of_batch(atom.carries) and not any(isinstance(part, Output) for part in atom.carries)
