"""Ways out that only some ranks may take: under a condition on the rank, or on this rank's own numbers."""

from __future__ import annotations

from typing import Any

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts, ranks
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.values import Const, Site, Value

Node = list[Any]
_CHECKS = frozenset({"isnan", "isinf", "isfinite"})
_OUT = ("continue", "break", "return")


def name_of_exit(call: Node) -> str:
    """``exit``, ``quit``, ``sys.exit`` or ``os._exit``, where a call's function is one; else empty."""
    if call[0] == "name" and call[1] in ("exit", "quit"):
        return str(call[1])
    if call[0] == "attr" and call[1][0] == "name" and (call[1][1], call[2]) in (("sys", "exit"), ("os", "_exit")):
        return f"{call[1][1]}.{call[2]}"
    return ""


def note(machine: Machine, statement: Node) -> None:
    """Record a way out that only some ranks take."""
    who = machine.who
    if who in ranks.PARTIAL and not (statement[0] == "return" and who == machine.frame.who):
        _record(machine, statement, ())


def note_unsure(machine: Machine, test: Node, branches: tuple[list[Node], ...]) -> None:
    """Record the ways out that hang on whether this rank's loss is a number, as ``if torch.isnan(loss): continue``."""
    for body in branches:
        if not body or not (body[-1][0] in _OUT or (body[-1][0] == "expr" and body[-1][2][0] == "call")):
            continue
        if body[-1][0] == "expr" and not name_of_exit(body[-1][2][1]):
            continue
        subject = _subject(test)
        if subject:
            _record(machine, body[-1], machine.evaluate(subject))


def _record(machine: Machine, statement: Node, subject: Value) -> None:
    frame = machine.frame
    name = statement[0]
    code: Value = ()
    if name == "expr":
        call = statement[2]
        name = name_of_exit(call[1])
        code = machine.evaluate(call[2][0]) if call[2] else (Const(0),)
    span = Span(*statement[1])
    site = Site(frame.module.path, span, span, frame.function.name if frame.function else "")
    machine.record(facts.Exit(name, subject=subject, code=code), site)


def _subject(node: Node) -> Node:
    """What a condition asks to be finite; empty for other conditions."""
    kind = node[0]
    parts: list[Node] = []
    if kind == "not" or kind == "attr":
        parts = [node[1]]
    elif kind == "bool":
        parts = node[2]
    elif kind == "cmp":
        if node[2] == ["NotEq"] and node[1] == node[3][0]:
            return list(node[1])  # `loss != loss`
        parts = [node[1], *node[3]]
    elif kind == "call":
        function = node[1]
        last = function[1] if function[0] == "name" else function[2] if function[0] == "attr" else ""
        if last in _CHECKS:
            return list(node[2][0] if node[2] else function[1])
        parts = [*node[2], *([function[1]] if function[0] == "attr" else [])]
    for part in parts:
        found = _subject(part)
        if found:
            return found
    return []
