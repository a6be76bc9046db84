"""What becomes of a call's result, and of its arguments, in the code behind it: looked up for rare calls only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine

Node = list[Any]
_SYNCHRONIZING = frozenset("wait wait_all synchronize barrier is_completed wait_stream".split())


def is_dropped(call: Call) -> bool:
    """Whether the call is a statement of its own, so that nothing gets its result."""
    return call.site.span == call.site.statement


def names_given(call: Call) -> list[str]:
    """The plain names, and the last names of attributes, among the arguments given by position."""
    arguments = call.node[2] if call.node else []
    return [node[1] if node[0] == "name" else node[2] for node in arguments if node[0] in ("name", "attr")]


def is_used_after(machine: Machine, call: Call, name: str) -> bool:
    """Whether ``name`` occurs behind the call in the function around it."""
    behind = False
    for node in _nodes(_body(machine)):
        if node is call.node:
            behind = True
        elif behind and ((node[0] == "name" and node[1] == name) or (node[0] == "attr" and node[2] == name)):
            if not any(node is argument for argument in call.node[2]):
                return True
    return False


def is_unwaited(machine: Machine, call: Call) -> bool:
    """Whether the handle that an asynchronous call returns is surely never waited for.

    Code that waits for, or synchronizes with, anything else in the same function counts as waiting.
    """
    body = _body(machine)
    if not is_dropped(call):
        name = next((node[2][0][1] for node in _nodes(body) if _binds(node, call)), None)
        if name is None or is_used_after(machine, call, name):
            return False
    for node in _nodes(body):
        if node[0] == "attr" and node[2] in _SYNCHRONIZING:
            return False
        if node[0] == "name" and node[1] in _SYNCHRONIZING:
            return False
    return True


def _binds(node: Node, call: Call) -> bool:
    """Whether the statement only gives the call's result one plain name."""
    return node[0] == "assign" and node[3] is call.node and len(node[2]) == 1 and node[2][0][0] == "name"


def _body(machine: Machine) -> Node:
    function = machine.frame.function
    if function is None:
        return machine.library.body(machine.frame.module)  # type: ignore[no-any-return]
    return function.node[4] if function.node[0] == "def" else [function.node[2]]


def _nodes(tree: Node) -> Iterator[Node]:
    """The expressions and statements in a lowered body, in the order of the text."""
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if not isinstance(node, list):
            continue
        if node and isinstance(node[0], str):
            yield node
        stack.extend(reversed(node))
