"""Data sets of the program that are iterated over, and give each rank a share of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.findings import Place, Span
from validate_ddp.interpreter.names_of_training import TELLING
from validate_ddp.interpreter.training import RNG, Subset
from validate_ddp.interpreter.values import Class, Function, Instance, Opaque, Rank, Value, WorldSize, bare, reaching
from validate_ddp.source.syntax import (
    Assign,
    Attribute,
    BinOp,
    Call,
    Compare,
    Expr,
    For,
    FunctionDef,
    If,
    IfExp,
    Name,
    Other,
    Subscript,
    Tuple,
)
from validate_ddp.source.traversal import last_name, walk

_ASKING = ("get_rank", "get_global_rank", "process_index")
_COUNTING = ("get_world_size", "num_processes")
_GIVEN = ("__iter__", "__next__")


def sliced_by_rank(dataset: Value) -> Place | None:
    """Where all of these keep every N-th item from the rank's on, as ``range(rank, n, world_size)`` does, or go through
    a slice by the rank, as of files; None where one does not, or where that is not in sight."""
    found = [_place(atom) for atom in bare(dataset)]
    return found[0] if found and None not in found else None


def _place(atom: Any) -> Place | None:
    if not isinstance(atom, Instance):
        return None
    if any(isinstance(cls, Class) and "__getitem__" in cls.members for cls in atom.cls.lineage()):
        return None  # a loader asks it for samples by their numbers
    for cls in atom.cls.lineage():
        for name in _GIVEN if isinstance(cls, Class) else ():
            for function in bare(cls.members.get(name, ())):
                if isinstance(function, Function) and isinstance(function.node, FunctionDef):
                    span = next(_slices(function.node, atom), None) or _kept(function.node, cls, atom)
                    if span is not None:
                        return Place(function.module.path, span, "it keeps a share by the rank")
    return None


def _slices(node: FunctionDef, instance: Instance) -> Iterator[Span]:
    """Loops over every N-th, from one that the rank tells on, or over such a slice."""
    known: set[str] = set()
    shares: dict[str, Span] = {}
    told = {id(part.test) for part in walk(node.body) if isinstance(part, If) and _only_tells(part)}
    for part in walk(node.body):
        if isinstance(part, Assign):
            for target, value in _pairs(part):
                if isinstance(target, Name) and _by_rank(value, known, instance):
                    known.add(target.id)
                if isinstance(target, Name) and _is_share_of(value, instance):
                    shares[target.id] = Span(*part.span)
        elif isinstance(part, For) and isinstance(part.iter, Name) and part.iter.id in shares:
            yield shares[part.iter.id]
        elif isinstance(part, For) and isinstance(part.iter, Call) and len(part.iter.args) > 2:
            start = {"range": 0, "islice": 1}.get(last_name(part.iter.func))
            if start is not None and _by_rank(part.iter.args[start], known, instance):
                yield Span(*part.span)
        elif isinstance(part, Compare) and part.ops in (["Eq"], ["NotEq"]) and id(part) not in told:
            one, other = part.left, part.comparators[0]
            turns = (isinstance(one, BinOp) and one.op == "Mod") or (isinstance(other, BinOp) and other.op == "Mod")
            if turns and any(not isinstance(each, BinOp) and _by_rank(each, known, instance) for each in (one, other)):
                yield Span(*node.span)


def _is_share_of(value: Any, instance: Instance) -> bool:
    """Whether it is ``items[rank::world_size]``."""
    if not isinstance(value, Subscript) or not isinstance(value.slice, Other):
        return False
    counted = any(
        (isinstance(part, Call) and last_name(part.func) in _COUNTING)
        or (isinstance(part, Attribute) and (part.attr in _COUNTING or _holds(instance, part, WorldSize)))
        for part in walk(value.slice)
    )
    return counted and _by_rank(value.slice, set(), instance)


def _holds(instance: Instance, part: Attribute, kind: type) -> bool:
    """Whether a field of the object is of a kind."""
    return _is_field(part) and any(isinstance(each, kind) for each in bare(instance.fields.get(part.attr, ())))


def share_of_share(dataset: Value) -> list[Place]:
    """Where these keep a share by the rank, and where all that one of theirs is, which they go through, keeps one too.
    None where only the name of a parameter says that it is the rank."""
    outer = sliced_by_rank(dataset)
    if outer is None or not _is_sure(dataset):
        return []
    inner = next((place for held in _within(dataset) if _is_sure(held) and (place := sliced_by_rank(held))), None)
    return [outer, inner] if inner is not None else []


def _is_sure(dataset: Value) -> bool:
    """Whether what they keep of ranks is surely the rank."""
    fields = [bare(held) for atom in bare(dataset) if isinstance(atom, Instance) for held in atom.fields.values()]
    ranks = [held for held in fields if any(isinstance(each, Rank) for each in held)]
    return all(isinstance(each, Rank) and each.sure for held in ranks for each in held)


def _within(dataset: Value) -> list[Value]:
    """What their iterations name of what they hold."""
    found: list[Value] = []
    for atom in bare(dataset):
        methods = {
            name: function.node
            for cls in reversed(atom.cls.lineage() if isinstance(atom, Instance) else [])
            for name, value in (cls.members.items() if isinstance(cls, Class) else ())
            for function in bare(value)
            if isinstance(function, Function) and isinstance(function.node, FunctionDef)
        }
        waiting, seen = [name for name in _GIVEN if name in methods], set(_GIVEN)
        while waiting:
            for part in walk(methods[waiting.pop()].body):
                if not isinstance(part, Attribute) or not _is_field(part) or part.attr in seen:
                    continue
                seen.add(part.attr)
                if part.attr in methods:
                    waiting.append(part.attr)
                elif isinstance(atom, Instance):
                    found.append(atom.fields.get(part.attr, ()))
    return found


def _kept(node: FunctionDef, cls: Class, instance: Instance) -> Span | None:
    """What is looped over, where it is a slice by the rank and the number of ranks that the object was made with."""
    for part in walk(node.body):
        for asked in walk([part.iter]) if isinstance(part, For) else ():
            if isinstance(asked, Attribute) and _is_field(asked) and _is_share(instance.fields.get(asked.attr, ())):
                return _sliced(asked.attr, cls)
    return None


def _is_field(node: Attribute) -> bool:
    return isinstance(node.value, Name) and node.value.id == "self"


def _is_share(value: Value) -> bool:
    """Whether all that it may be is made with the rank in the world, and how many there are."""
    parts = [reaching((atom,)) for atom in bare(value)]
    return bool(parts) and all(
        any(isinstance(each, Rank) and each.scope == "global" for each in held)
        and any(isinstance(each, WorldSize) for each in held)
        for held in parts
    )


def _sliced(name: str, cls: Class) -> Span | None:
    """Where a class sets a field to a slice of something."""
    for function in (each for value in cls.members.values() for each in bare(value)):
        if not isinstance(function, Function) or not isinstance(function.node, FunctionDef):
            continue
        for part in walk(function.node.body):
            if not isinstance(part, Assign) or not isinstance(part.value, Subscript):
                continue
            if not isinstance(part.value.slice, Other):
                continue
            for target in part.targets:
                if isinstance(target, Attribute) and target.attr == name and _is_field(target):
                    return Span(*part.span)
    return None


def _only_tells(part: If) -> bool:
    """Whether nothing hangs on a condition but what is printed: ``if index % 100 == rank: print(index)``."""
    calls = [each.value if isinstance(each, Expr) else None for each in part.body]
    told = all(isinstance(call, Call) and last_name(call.func) in TELLING.words for call in calls)
    return told and not part.orelse


def _pairs(part: Assign) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for target in part.targets:
        if isinstance(target, Tuple) and isinstance(part.value, Tuple):
            found += zip(target.elts, part.value.elts, strict=False)
        else:
            found.append((target, part.value))
    return found


def _by_rank(value: Any, known: set[str], instance: Instance) -> bool:
    """Whether a number is made of the rank in the world."""
    if isinstance(value, IfExp):
        return False
    for part in walk(value):
        if isinstance(part, Name) and part.id in known:
            return True
        if isinstance(part, Call) and last_name(part.func) in _ASKING and not part.args and not part.keywords:
            return True
        if isinstance(part, Attribute):
            held = (
                instance.fields.get(part.attr, ()) if isinstance(part.value, Name) and part.value.id == "self" else ()
            )
            ranks = [each for each in bare(held) if isinstance(each, Rank)]
            if part.attr in _ASKING or any(each.scope == "global" for each in ranks):
                return True
    return False


def is_of_shard(dataset: Value) -> bool:
    """Whether it is what sharding of a data set by a rank of the whole job gave, or a `Subset` by it."""
    return bool(dataset) and all(_is_sharded(atom) for atom in bare(dataset))


_SHARDING = ("shard", "split_dataset_by_node")


def _is_sharded(atom: Any) -> bool:
    parts: Value = ()
    if isinstance(atom, Subset):
        parts = reaching(atom.indices)
    elif isinstance(atom, Opaque) and atom.name.removesuffix("()").rpartition(".")[2] in _SHARDING:
        parts = atom.carries
    return any(isinstance(part, Rank) and part.sure and part.scope == "global" for part in parts) and not any(
        isinstance(part, RNG) for part in parts
    )
