"""A write in a helper that does nothing else: what is wrong with it is wrong where the helper is called."""

from __future__ import annotations

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.surroundings import call_at, levels
from validate_ddp.interpreter.trace import Program
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Statement

_SHORT = 4
"""Statements in a helper that only writes: the write, and what makes ready for it."""
_FILE = ("f", "file", "filename", "fname", "path", "stream")


def told_at_caller(program: Program, fact: facts.Save) -> facts.Save:
    """The write, told of the place in another file where its helper is called; itself where the function does more.

    A helper beside its callers is one place to mend for all of them.
    """
    if not fact.chain or fact.chain[-1].path == fact.site.path or not _is_in_helper(program, fact):
        return fact
    return fact.moved(fact.chain[-1])


def _is_in_helper(program: Program, fact: facts.Save) -> bool:
    """Whether the function is short, has no loop, and writes to the path that it is given."""
    body = program.body(fact.site.path)
    owners = [level.owner for level in levels(body, fact.site.statement)]
    function = next((owner for owner in reversed(owners) if isinstance(owner, syntax.FunctionDef)), None)
    call = call_at(body, fact.site.span)
    if function is None or call is None or any(isinstance(owner, syntax.ClassDef) for owner in owners):
        return False
    if len(_without_text(function.body)) > _SHORT or any(
        isinstance(owner, (syntax.For, syntax.While)) for owner in owners
    ):
        return False
    at = 0 if fact.name == "open" else 1
    given = [*call.args[at : at + 1], *(each.value for each in call.keywords if each.arg in _FILE)]
    names = {parameter.name for parameter in function.args.parameters}
    return any(isinstance(part, syntax.Name) and part.id in names for part in given)


def _without_text(body: list[Statement]) -> list[Statement]:
    return [node for node in body if not (isinstance(node, syntax.Expr) and isinstance(node.value, syntax.Constant))]
