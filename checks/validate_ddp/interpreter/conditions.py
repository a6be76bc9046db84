"""What a condition says about the ranks that pass it, and about the values of the names in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from validate_ddp.interpreter import metrics, premise, ranks, roles, sameness, vocabulary
from validate_ddp.interpreter.fact import Flag
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names import DEVICE_NUMBER
from validate_ddp.interpreter.objects import Container, Dict, Sequence
from validate_ddp.interpreter.ranks import Who
from validate_ddp.interpreter.values import (
    Class,
    Const,
    Function,
    Instance,
    ModuleRef,
    OnRanks,
    Opaque,
    Rank,
    RankTest,
    Resource,
    Symbol,
    Value,
    WorldSize,
    bare,
    constant,
    unmarked,
)
from validate_ddp.source.syntax import Attribute, BinOp, BoolOp, Call, Compare, Constant, Expression, Name, Not
from validate_ddp.source.traversal import last_name

Truth = bool | RankTest | None


class Present(Opaque):
    """Something unknown that was asked whether it is None, and is not."""

    __slots__ = ()


def atom_truth(atom: Any) -> Truth:
    if isinstance(atom, Const):
        return bool(atom.value)
    if isinstance(atom, RankTest):
        return atom
    if isinstance(atom, Rank):
        if atom.text:
            return True  # `if os.environ.get("LOCAL_RANK"):` asks whether a launcher has set it
        if atom.named in DEVICE_NUMBER.words:
            return RankTest("unclear", exact=False, sure=False)  # `if args.gpu:`
        if atom.scope == "group":
            return _of_group(atom)
        return RankTest("local-nonzero" if atom.scope == "local" else "nonzero", sure=not atom.named)
    if isinstance(atom, Opaque):
        return roles.hinted(atom.name)
    if isinstance(atom, Resource):
        return None if isinstance(atom, Container) else True
    if isinstance(atom, Symbol):
        return True if _is_of_library(atom) else roles.hinted(atom.name)
    if isinstance(atom, (Instance, Function, Class, ModuleRef, WorldSize)):
        return True
    return None


def _is_of_library(atom: Symbol) -> bool:
    """Whether it is a module, or known to be a function or class: not a flag that some file out of sight sets."""
    root, dot, _ = atom.name.partition(".")
    return not dot or root in vocabulary.LIBRARIES


def combine(rows: list[tuple[Who, Truth]], sure: bool = True) -> Truth:
    """One truth of several alternatives, each with the ranks that hold it. sure: which those are is no guess."""
    for who, truth in rows:
        if isinstance(truth, RankTest) and who == "all":
            return truth
    truths = [truth for _, truth in rows]
    if truths and all(truth is True for truth in truths):
        return True
    if truths and all(truth is False for truth in truths):
        return False
    marked = [(who, truth) for who, truth in rows if who != "all"]
    holders = {who for who, truth in marked if truth is not False}
    if len(holders) == 1 and len(marked) < len(rows) and all(row[1] is False or row[0] in holders for row in rows):
        return RankTest(holders.pop(), exact=False, sure=sure)  # `writer = Writer() if log and rank == 0 else None`
    for who, truth in marked:
        if truth is False:
            continue
        others = [other for holder, other in marked if holder == ranks.opposite(who)]
        if others and all(other is False for other in others):
            there = [row for holder, row in rows if holder in ("all", who)]
            return RankTest(who, all(row is True for row in there), sure=sure)
    return None


def truth_of(value: Value, judge: Callable[[Any], Truth] = atom_truth) -> Truth:
    """Whether the value counts as true, as ``judge`` says of each alternative."""
    rows = [(atom.who if isinstance(atom, OnRanks) else "all", judge(unmarked(atom))) for atom in value]
    return combine(rows, all(atom.sure for atom in value if isinstance(atom, OnRanks)))


def negated(truth: Truth) -> Truth:
    if isinstance(truth, bool):
        return not truth
    if isinstance(truth, RankTest):
        return RankTest(truth.rest, truth.exact, truth.who, truth.sure)
    return None


def as_value(truth: Truth) -> Value:
    if truth is None:
        return (Opaque(),)
    return (truth,) if isinstance(truth, RankTest) else (Const(truth),)


def test(machine: Machine, node: Expression) -> Truth:
    """What the condition ``node`` is in a distributed launch."""
    if isinstance(node, Not):
        return negated(test(machine, node.operand))
    if isinstance(node, BoolOp):
        truths: list[Truth] = []
        deciding = node.op == "Or"
        with machine.flagged():  # what it marks ends with it
            for part in node.values:
                truths.append(test(machine, part))
                if truths[-1] is deciding:
                    return deciding
                machine.flags.append(Flag.SHORTED)
        return any_of(truths) if deciding else all_of(truths)
    if isinstance(node, Compare):
        truth, operands = compared(machine, node)
        if truth is None:
            _undecided(machine, operands)
        machine.premised |= isinstance(truth, bool) and premise.is_taken(operands)
        return truth
    value = _settings(machine.evaluate(node))
    truth = truth_of(value)
    machine.premised |= isinstance(truth, bool) and premise.is_taken(value)
    if truth is None and isinstance(node, (Name, Attribute)):
        presumed = machine.presumed.get(flag_name(node))
        truth = roles.hinted(last_name(node)) if presumed is None else presumed
        machine.premised |= isinstance(truth, bool)
        if truth is None and flag_name(node) in machine.agreed:
            metrics.decided(machine, value)
            return None
    if truth is None:
        _undecided(machine, value)
    return truth


def _undecided(machine: Machine, operands: Value) -> None:
    machine.differs = machine.differs or not sameness.is_alike(operands)
    metrics.decided(machine, operands)


class Answer(NamedTuple):
    """What a condition is, as the walk asks for it.

    differs: where that is not known, whether the ranks may differ about it. premised: it is known because this is a
    launch on several ranks.
    """

    truth: Truth
    differs: bool
    premised: bool


def asked(machine: Machine, node: Expression) -> Answer:
    """What the condition is in a distributed launch, and why."""
    before = machine.differs, machine.premised
    machine.differs = machine.premised = False
    truth = test(machine, node)
    differs, premised = machine.differs, machine.premised
    machine.differs, machine.premised = before
    return Answer(truth, truth is None and differs, truth is not None and premised)


def all_of(truths: list[Truth]) -> Truth:
    tests = [truth for truth in truths if isinstance(truth, RankTest)]
    if tests:
        who = ranks.all_of(truth.who for truth in tests)
        exact = all(t is True or (isinstance(t, RankTest) and t.exact) for t in truths)
        return RankTest(who, exact, sure=ranks.all_of(truth.who for truth in tests if truth.sure) == who)
    return None if any(truth is None for truth in truths) else all(truths)


def any_of(truths: list[Truth]) -> Truth:
    tests = [truth for truth in truths if isinstance(truth, RankTest)]
    if tests:
        whos, sure = {truth.who for truth in tests}, all(truth.sure for truth in tests)
        if any(truth is None for truth in truths):  # true of any rank, perhaps; false of none that a test is true of
            alike = len(whos) == 1 and all(truth.exact for truth in tests)
            return RankTest("unclear", exact=False, rest=tests[0].rest if alike else None, sure=sure)
        if len(whos) == 1 and all(truth.exact for truth in tests):
            return RankTest(tests[0].who, True, tests[0].rest, sure)
        who: Who = "some" if len(whos) == 1 and "unclear" not in whos else "unclear"
        return RankTest(who, exact=False, sure=sure)
    return None if any(truth is None for truth in truths) else any(truths)


def compared(machine: Machine, node: Compare) -> tuple[Truth, Value]:
    """What a comparison is, and its operands."""
    left_node = node.left
    left = machine.evaluate(left_node)
    operands: Value = ()
    truths: list[Truth] = []
    for operator, right_node in zip(node.ops, node.comparators, strict=True):
        if isinstance(right_node, Call) and isinstance(right_node.func, Attribute) and right_node.func.attr == "keys":
            right_node = right_node.func.value  # `"process" in type(self).__dict__.keys()`
        right = machine.evaluate(right_node)
        if operator not in _EQUALITIES or constant(right) is None or constant(left) is None:
            left, right = _settings(left), _settings(right)  # `if args.gpu >= 0:`
        operands += left
        truths.append(False if _never(left_node, operator, right_node) else _compared(left, operator, right))
        left, left_node = right, right_node
    return all_of(truths), operands + left


def _settings(value: Value) -> Value:
    """What is asked of a setting called after a device, other than which it is, as of any other: whether to use one."""
    return tuple(
        Opaque(atom.named, alike=True)
        if isinstance(atom, Rank) and atom.alike and atom.named in DEVICE_NUMBER.words
        else atom
        for atom in value
    )


def _never(left: Expression, operator: str, right: Expression) -> bool:
    """``step % k == k``: a remainder is never its divisor."""
    return operator == "Eq" and isinstance(left, BinOp) and left.op == "Mod" and _is_same(left.right, right)


def _is_same(first: Expression, second: Expression) -> bool:
    """Whether two names or fields, such as `args.steps`, are the same one."""
    if isinstance(first, Attribute) and isinstance(second, Attribute):
        return first.attr == second.attr and _is_same(first.value, second.value)
    return isinstance(first, (Name, Constant)) and type(first) is type(second) and first == second


_MIRROR = {"Lt": "Gt", "Gt": "Lt", "LtE": "GtE", "GtE": "LtE"}


def _compared(left: Value, operator: str, right: Value) -> Truth:
    left_atoms, right_atoms = bare(left), bare(right)
    for atoms, others, name in (
        (left_atoms, right, operator),
        (right_atoms, left, _MIRROR.get(operator, operator)),
    ):
        for atom in atoms:
            if isinstance(atom, Rank):
                truth = _rank_test(atom, name, others)
                defaults = [other.value for other in atoms if isinstance(other, Const)]
                if isinstance(truth, bool) and any(
                    _constants(default, name, constant(others)) is not truth for default in defaults
                ):
                    return None  # `rank = -1` until the group is there: this may be before or after
                return truth
            if isinstance(atom, WorldSize) and (atoms is left_atoms or operator not in ("In", "NotIn")):
                return None if atom.group else _world_test(name, constant(others))
    if operator in ("In", "NotIn") and any(isinstance(a, Symbol) and a.name == "os.environ" for a in right_atoms):
        present = constant(left) in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        return (operator == "In") if present else None
    classes = _class_test(left_atoms, operator, right_atoms)
    if classes is not None:
        return classes
    if constant(right) is None and operator in ("Is", "IsNot", "Eq", "NotEq"):
        answer = truth_of(left, lambda atom: negated(is_none_truth(atom)))
        return answer if operator in ("IsNot", "NotEq") else negated(answer)
    for atom in right_atoms + left_atoms:
        if isinstance(atom, RankTest) and operator in ("Eq", "Is", "NotEq", "IsNot"):
            other = constant(left if atom in right_atoms else right)
            if isinstance(other, bool):
                return atom if other is (operator in ("Eq", "Is")) else negated(atom)
    if operator in ("In", "NotIn"):
        for atom in right_atoms:
            if "*" in getattr(atom, "fields", "*"):
                continue
            members: list[Any] = []
            if isinstance(atom, Sequence):
                members = [constant(item) for item in atom.fields.values()]
            elif type(atom) is Dict and all(isinstance(_value(other), str) for other in left_atoms):
                members = list(atom.fields)
            held = {_value(other) in members for other in left_atoms}
            if members and ... not in members and len(held) == 1 and all(isinstance(at, Const) for at in left_atoms):
                return held.pop() is (operator == "In")
    if operator in ("Eq", "NotEq") and left_atoms and all(isinstance(atom, (Function, Class)) for atom in left_atoms):
        if constant(right) is not ...:
            return operator == "NotEq"
    verdicts = {_constants(_value(atom), operator, constant(right)) for atom in left_atoms}
    return verdicts.pop() if len(verdicts) == 1 else None


def _value(atom: Any) -> Any:
    return atom.value if isinstance(atom, Const) else ...


def _class_test(left: list[Any], operator: str, right: list[Any]) -> Truth:
    """``type(x) in (A, B)`` and ``type(x) is A``, by the classes' last names."""
    wanted: list[Any] = []
    for atom in right:
        if isinstance(atom, Sequence):
            wanted.extend(part for value in atom.fields.values() for part in bare(value))
        else:
            wanted.append(atom)
    if not left or not wanted or not all(isinstance(atom, Symbol) for atom in (*left, *wanted)):
        return None
    names = {atom.last for atom in wanted}
    verdicts = {atom.last in names for atom in left}
    if len(verdicts) == 2 or operator not in ("In", "NotIn", "Is", "IsNot", "Eq", "NotEq"):
        return None
    return verdicts.pop() is (operator in ("In", "Is", "Eq"))


def is_none_truth(atom: Any) -> Truth:
    if isinstance(atom, Const):
        return atom.value is None
    if isinstance(atom, Symbol) and atom.name.count(".") > 1 and not _is_of_library(atom):
        return None  # `cfg.resume` of an import that is not there
    return None if isinstance(atom, Opaque) and not isinstance(atom, Present) else False


def _rank_test(rank: Rank, operator: str, other: Value) -> Truth:
    truth = _split_by(rank, operator, other)
    if not rank.named:
        return truth
    if rank.named in DEVICE_NUMBER.words and (isinstance(truth, bool) or operator not in _EQUALITIES):
        return None if isinstance(truth, bool) else RankTest("unclear", exact=False, sure=False)  # `if args.gpu >= 0:`
    return RankTest(truth.who, truth.exact, truth.rest, sure=False) if isinstance(truth, RankTest) else truth


_EQUALITIES = ("Eq", "NotEq", "Is", "IsNot", "In", "NotIn")


def _split_by(rank: Rank, operator: str, other: Value) -> Truth:
    number = _number(rank, constant(other))
    if any(isinstance(atom, (Rank, WorldSize, Opaque)) for atom in bare(other)):
        if operator in ("Eq", "Is", "In"):
            return RankTest("some")
        return RankTest("some") if operator in ("NotEq", "IsNot") else RankTest("unclear", exact=False)
    for atom in bare(other):
        if isinstance(atom, Sequence):
            number = tuple(_number(rank, constant(item)) for item in atom.fields.values())
    answer = ranks.compare(rank.scope, operator, number)
    if rank.scope == "group" and isinstance(answer, tuple):
        return _of_group(rank)
    return RankTest(*answer) if isinstance(answer, tuple) else answer


def _number(rank: Rank, other: Any) -> Any:
    """What a rank is compared with: `os.environ["RANK"] == "0"` compares texts."""
    return int(other) if rank.text and isinstance(other, str) and other.isdecimal() else other


def _of_group(rank: Rank) -> RankTest:
    """A question about the rank in a group: several ranks of the world have each number."""
    return RankTest("some", sure=not rank.named)


def _world_test(operator: str, number: Any) -> Truth:
    """A distributed launch has at least two ranks."""
    if type(number) is not int:
        return None
    if number <= 1:
        verdict = {"Gt": True, "NotEq": True, "GtE": True, "Eq": False, "Lt": False, "LtE": False}
        return verdict.get(operator)
    if number == 2:
        return {"GtE": True, "Lt": False}.get(operator)
    return None


def _constants(left: Any, operator: str, right: Any) -> Truth:
    if left is ... or right is ...:
        return None
    try:
        if operator in ("Eq", "Is"):
            return bool(left == right)
        if operator in ("NotEq", "IsNot"):
            return bool(left != right)
        if operator in ("Lt", "LtE", "Gt", "GtE"):
            ordered = {"Lt": left < right, "LtE": left <= right, "Gt": left > right, "GtE": left >= right}
            return bool(ordered[operator])
        if operator in ("In", "NotIn") and isinstance(right, str):
            return (left in right) is (operator == "In")
    except TypeError:
        return None
    return None


def flag_name(node: Name | Attribute) -> str:
    """What tells a flag from others: the last part of its name, if that has several words, else what it is part of."""
    if isinstance(node, Name):
        return node.id
    if "_" in node.attr.strip("_") or not isinstance(node.value, (Name, Attribute)):
        return node.attr
    return f"{last_name(node.value)}.{node.attr}"
