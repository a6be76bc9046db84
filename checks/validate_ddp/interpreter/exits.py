"""Ways out that only some ranks may take: under a condition on the rank, or on this rank's own numbers."""

from __future__ import annotations

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts, ranks
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import List
from validate_ddp.interpreter.values import Const, Opaque, Site, Value, bare
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Attribute, Expression, Statement
from validate_ddp.source.traversal import dotted, last_name, statement_call, walk, words_of

_Out = syntax.Continue | syntax.Break | syntax.Return | syntax.Expr
_CHECKS = frozenset({"isnan", "isinf", "isfinite"})
_KEYWORDS = {syntax.Continue: "continue", syntax.Break: "break", syntax.Return: "return"}
_FUNCTIONS = ("exit", "quit", "sys.exit", "os._exit")


def name_of_exit(function: Expression) -> str:
    """``exit``, ``quit``, ``sys.exit`` or ``os._exit``, where a call's function is one; else empty."""
    name = dotted(function) or ""
    return name if name in _FUNCTIONS else ""


def note(machine: Machine, statement: _Out) -> None:
    """Record a way out that only some ranks take."""
    who = machine.who
    if who in ranks.PARTIAL and not (isinstance(statement, syntax.Return) and who == machine.frame.who):
        _record(machine, statement, ())


def taken_along(value: Value) -> Value:
    """What some ranks return: a list as it is by then, which the others may go on to fill."""
    return tuple(List(atom.site, dict(atom.fields)) if type(atom) is List else atom for atom in value)


def note_unsure(machine: Machine, test: Expression, branches: tuple[list[Statement], ...]) -> None:
    """Record the ways out that hang on this rank's own numbers, as ``if torch.isnan(loss): continue``.

    So is a backward that is left out: ``if torch.isfinite(loss): loss.backward()``.
    """
    for body, other in (branches, branches[::-1]):
        last, name = (body[-1] if body else None), ""
        if last is None or not _leaves(body):
            last, name = next(filter(_goes_back, body), None), "skip"
            if _leaves(other) or any(map(_goes_back, other)):
                continue
        if last is None or isinstance(last, syntax.Raise):
            continue
        subject, lacking = _subject(test) or _answered(machine, test), ""
        if subject is None:
            subject, lacking = _emptied(test), "empty"
        if subject is None:
            subject, lacking = _incomplete(test), "incomplete"
        if subject is not None:
            _record(machine, last, machine.evaluate(subject), name=name, lacking=lacking, words=_named(subject))


def _leaves(body: list[Statement]) -> bool:
    """Whether a branch ends in a way out, so that what is left out in it is told of there."""
    last = body[-1] if body else None
    if isinstance(last, syntax.Expr):
        call = statement_call(last)
        return call is not None and bool(name_of_exit(call.func))
    return isinstance(last, (syntax.Continue, syntax.Break, syntax.Return, syntax.Raise))


def _goes_back(statement: Statement) -> bool:
    call = statement_call(statement)
    return call is not None and isinstance(call.func, Attribute) and call.func.attr == "backward"


def _named(subject: Expression) -> str:
    return " ".join(words_of(walk(subject))).replace(".", " ")


def _answered(machine: Machine, test: Expression) -> Expression | None:
    """A name that holds whether something is finite: `bad = not torch.isfinite(loss)`, then `if bad:`."""
    asked = test.operand if isinstance(test, syntax.Not) else test
    if not isinstance(asked, (syntax.Name, Attribute)):
        return None
    names = [atom.name for atom in bare(machine.evaluate(asked)) if isinstance(atom, Opaque)]
    return asked if any(f"{check}()" in name for name in names for check in _CHECKS) else None


def _emptied(node: Expression) -> Expression | None:
    """What a condition asks to hold anything: `batch is None`, `len(boxes) == 0`, `not mask.any()`."""
    if isinstance(node, syntax.Not):
        return _counted(node.operand)
    if not isinstance(node, syntax.Compare) or len(node.ops) != 1:
        return None
    other = node.comparators[0]
    if not isinstance(other, syntax.Constant):
        return None
    if other.value is None:
        return node.left if node.ops[0] in ("Is", "Eq") and isinstance(node.left, syntax.Name) else None
    return _counted(node.left) if other.value == 0 and node.ops[0] in ("Eq", "LtE") else None


def _incomplete(node: Expression) -> Expression | None:
    """What a condition asks to be there without exception: `not all(found)`, `not mask.all()`."""
    call = node.operand if isinstance(node, syntax.Not) else None
    if not isinstance(call, syntax.Call) or last_name(call.func) != "all":
        return None
    asked = call.args[0] if call.args else call.func.value if isinstance(call.func, Attribute) else None
    return asked if isinstance(asked, _PLAIN) else None  # of keys in a batch, all ranks have the same


def _counted(node: Expression) -> Expression | None:
    if not isinstance(node, syntax.Call):
        return None
    if last_name(node.func) == "item" and isinstance(node.func, Attribute):
        return _counted(node.func.value)
    if last_name(node.func) not in _COUNTS:
        return None
    return node.args[0] if node.args else node.func.value if isinstance(node.func, Attribute) else None


_COUNTS = frozenset("len sum any numel count_nonzero".split())
_PLAIN = (syntax.Name, Attribute, syntax.Subscript)


def _record(
    machine: Machine, statement: Statement, subject: Value, *, name: str = "", lacking: str = "", words: str = ""
) -> None:
    frame = machine.frame
    code: Value = ()
    if isinstance(statement, syntax.Expr) and not name:
        call = statement_call(statement)
        assert call is not None  # only those come here
        name = name_of_exit(call.func)
        code = machine.evaluate(call.args[0]) if call.args else (Const(0),)
    else:
        name = name or _KEYWORDS[type(statement)]
    span = Span(*statement.span)
    site = Site(frame.module.path, span, span, frame.function.name if frame.function else "")
    machine.record(facts.Exit(name, subject=subject, code=code, lacking=lacking, words=words), site)


def _subject(node: Expression) -> Expression | None:
    """What a condition asks to be finite; None for other conditions."""
    parts: list[Expression] = []
    if isinstance(node, syntax.Not):
        parts = [node.operand]
    elif isinstance(node, Attribute):
        parts = [node.value]
    elif isinstance(node, syntax.BoolOp):
        parts = node.values
    elif isinstance(node, syntax.Compare):
        first, second = node.left, node.comparators[0]
        if node.ops == ["NotEq"] and type(first) is type(second) and first == second:
            return first  # `loss != loss`
        parts = [node.left, *node.comparators]
    elif isinstance(node, syntax.Call):
        if last_name(node.func) in _CHECKS:
            if node.args:
                return node.args[0]
            return node.func.value if isinstance(node.func, Attribute) else None
        parts = [*node.args, *([node.func.value] if isinstance(node.func, Attribute) else [])]
    for part in parts:
        found = _subject(part)
        if found is not None:
            return found
    return None
