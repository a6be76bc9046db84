"""Where the normal path of a process that joined a process group ends."""

from __future__ import annotations

from typing import Any, NamedTuple

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.surroundings import (
    Level,
    bodies_of,
    dotted,
    imported_as,
    is_main_block,
    levels,
    statement_at,
)
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Site

Node = list[Any]


class Ending(NamedTuple):
    """The last statement of a process, or the ``return`` before which there is a place (``before``).

    in_use: what may still need the group lives on there, as a wrapped model does, or comes after it: code behind the
    main block, a thread, a handler of the interpreter's end, a checkpoint that is written in the background.
    """

    path: str
    statement: Span
    before: bool
    in_use: bool


def ending(program: Program, started: Fact) -> Ending | None:
    """The end of the path on which ``started`` lies; None where it is not plain."""
    if Flag.SPAWNED in started.flags:
        return _of_worker(program, started)
    first = started.chain[0] if started.chain else started.site
    if first.path != program.entry or first.function:
        return None
    body = program.body(first.path)
    held = levels(body, first.statement)
    if not held:
        return None
    inner = next((level for level in held if is_main_block(level)), held[0])
    if any(level.owner is not None and level.owner[0] not in ("if", "with") for level in held):
        return None  # in a loop, or in a `try` whose handler would go on to it
    if started.chain and not _returns(body, _statement(held[-1])):
        return None
    last = inner.body[-1]
    if last[0] in ("raise", "return", "try", "while") or _exits(last):
        return None
    alive = any(_is_kept(program, (*fact.chain, fact.site), 0) for fact in program.facts(facts.Wrap))
    behind = is_main_block(inner) and len(held[0].body) > held[0].at + 1
    return Ending(first.path, Span(*inner.body[0][1]), False, alive or behind or _works_on(program))


def _works_on(program: Program) -> bool:
    """Whether the program starts what may outlive its last statement."""
    return program.mentions(b"Thread", b"atexit", b"async_save", b"concurrent.futures")


def _of_worker(program: Program, started: Fact) -> Ending | None:
    """The last statement of the function that a launcher runs in each process."""
    launches = {fact.site for fact in program.facts(facts.Launch)}
    sites: list[Site] = [*started.chain, started.site]
    at = next((number for number, site in enumerate(started.chain) if site in launches), None)
    if at is None:
        return None
    inside = sites[at + 1]
    body = program.body(inside.path)
    held = levels(body, inside.statement)
    functions = [level for level in held if level.owner is not None and level.owner[0] == "def"]
    if len(functions) != 1 or any(level.owner is not None and level.owner[0] == "class" for level in held):
        return None
    worker = functions[0]
    if worker.owner is None or worker.owner[6] or any(_returns_early(node) for node in worker.body[:-1]):
        return None
    alive = any(_is_kept(program, (*fact.chain, fact.site), at + 1) for fact in program.facts(facts.Wrap))
    alive = alive or _works_on(program)
    last = worker.body[-1]
    if last[0] in ("raise", "try", "while") or _exits(last):
        return None
    if last[0] == "return":
        plain = last[2][0] in ("name", "const")
        return Ending(inside.path, Span(*last[1]), True, alive) if plain else None
    return Ending(inside.path, Span(*worker.body[0][1]), False, alive)


def _is_kept(program: Program, sites: tuple[Site, ...], at: int) -> bool:
    """Whether what a call of the outermost function makes may outlive it: its result is kept, or it is a method.

    at: which of the sites, from the outermost call to the thing itself, is in that function.
    """
    if at >= len(sites) - 1:
        return True
    body = program.body(sites[at].path)
    statement = statement_at(body, sites[at].statement)
    if statement is None or statement[0] != "expr" or statement[2][0] != "call":
        return True
    callee = statement[2][1]
    return callee[0] != "name" and imported_as(body, dotted(callee) or "", sites[at].statement) is None


def _statement(level: Level) -> Node:
    return level.body[level.at]


def _returns(body: list[Node], statement: Node) -> bool:
    """Whether a call of the top level comes back: not one that a library turns into a whole command."""
    value = statement[3] if statement[0] == "assign" else statement[2] if statement[0] == "expr" else None
    if value is None or value[0] != "call":
        return False
    name = dotted(value[1])
    if name is None:
        return False
    for node in body:
        if node[0] == "def" and node[2] == name:
            words = str(node[5])
            return not any(word in words for word in ("click", "command", "typer", "app"))
    return name.rpartition(".")[2] not in ("run", "start", "Typer", "exit")


def _returns_early(node: Node) -> bool:
    """Whether a statement holds a ``return`` or an exit, behind which the last statement is not reached."""
    if node[0] == "return" or _exits(node):
        return True
    if node[0] in ("def", "class"):
        return False
    return any(_returns_early(inner) for body in bodies_of(node) for inner in body)


def _exits(node: Node) -> bool:
    if node[0] != "expr" or node[2][0] != "call":
        return False
    return dotted(node[2][1]) in ("exit", "quit", "sys.exit", "os._exit")
