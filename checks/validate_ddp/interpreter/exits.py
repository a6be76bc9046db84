"""Ways out that only some ranks may take: under a condition on the rank, or on this rank's own numbers."""

from __future__ import annotations

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts, ranks
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.values import Const, Site, Value
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Attribute, Expression, Statement
from validate_ddp.source.traversal import dotted, last_name, statement_call

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


def note_unsure(machine: Machine, test: Expression, branches: tuple[list[Statement], ...]) -> None:
    """Record the ways out that hang on whether this rank's loss is a number, as ``if torch.isnan(loss): continue``."""
    for body in branches:
        last = body[-1] if body else None
        if isinstance(last, syntax.Expr):
            call = statement_call(last)
            if call is None or not name_of_exit(call.func):
                continue
        elif not isinstance(last, (syntax.Continue, syntax.Break, syntax.Return)):
            continue
        subject = _subject(test)
        if subject is not None:
            _record(machine, last, machine.evaluate(subject))


def _record(machine: Machine, statement: _Out, subject: Value) -> None:
    frame = machine.frame
    code: Value = ()
    if isinstance(statement, syntax.Expr):
        call = statement_call(statement)
        assert call is not None  # only those come here
        name = name_of_exit(call.func)
        code = machine.evaluate(call.args[0]) if call.args else (Const(0),)
    else:
        name = _KEYWORDS[type(statement)]
    span = Span(*statement.span)
    site = Site(frame.module.path, span, span, frame.function.name if frame.function else "")
    machine.record(facts.Exit(name, subject=subject, code=code), site)


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
