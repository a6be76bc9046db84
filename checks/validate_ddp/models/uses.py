"""What becomes of a call's result, and of its arguments, in the code behind it: looked up for rare calls only."""

from __future__ import annotations

from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.source.syntax import Assign, Attribute, Expression, Lambda, Name, Statement
from validate_ddp.source.traversal import last_name, walk

_SYNCHRONIZING = frozenset("wait wait_all synchronize barrier is_completed wait_stream".split())


def is_dropped(call: Call) -> bool:
    """Whether the call is a statement of its own, so that nothing gets its result."""
    return call.site.span == call.site.statement


def names_given(call: Call) -> list[str]:
    """The plain names, and the last names of attributes, among the arguments given by position."""
    arguments = call.node.args if call.node else []
    return [last_name(node) for node in arguments if isinstance(node, (Name, Attribute))]


def is_used_after(machine: Machine, call: Call, name: str) -> bool:
    """Whether ``name`` occurs behind the call in the function around it."""
    behind = False
    found = 0
    for node in walk(_body(machine)):
        if node is call.node:
            behind = True
        elif behind and last_name(node) == name:
            found += 1
    own = names_given(call).count(name)  # these come behind it too, as parts of it
    return found > own


def is_unwaited(machine: Machine, call: Call) -> bool:
    """Whether the handle that an asynchronous call returns is surely never waited for.

    Code that waits for, or synchronizes with, anything else in the same function counts as waiting.
    """
    body = _body(machine)
    if not is_dropped(call):
        name = next((bound for node in walk(body) if (bound := _bound_to(node, call))), None)
        if name is None or is_used_after(machine, call, name):
            return False
    return not any(last_name(node) in _SYNCHRONIZING for node in walk(body))


def _bound_to(node: Expression | Statement, call: Call) -> str:
    """The one plain name that the statement gives the call's result; empty for any other."""
    if not isinstance(node, Assign) or node.value is not call.node or len(node.targets) != 1:
        return ""
    return node.targets[0].id if isinstance(node.targets[0], Name) else ""


def _body(machine: Machine) -> list[Statement] | list[Expression]:
    function = machine.frame.function
    if function is None:
        return machine.library.body(machine.frame.module)  # type: ignore[no-any-return]
    return [function.node.body] if isinstance(function.node, Lambda) else function.node.body
