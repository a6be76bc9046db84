"""Whether a write can be kept from all ranks but one, and whether anybody would notice."""

from __future__ import annotations

from typing import Any

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.surroundings import bodies_of, call_at, end_of, levels, statement_at
from validate_ddp.interpreter.trace import Program

Node = list[Any]

_SILENT = ("print", "info", "debug", "warning", "log", "write")
_FINDERS = (b"glob", b"listdir", b"scandir", b"iterdir", b"subprocess", b"os.system", b"rename", b"os.replace")
"""What a program does with files that were written, by names which are not known here."""
_PASSED_ON = ("copy", "copy2", "copyfile", "copytree", "move")


def can_be_left_out(program: Program, fact: Fact) -> bool:
    """Whether the statement gives no name a value that what follows could need, and the function leaves its file be."""
    body = program.body(fact.site.path)
    node = statement_at(body, fact.site.statement)
    if node is None or not _binds_nothing(node):
        return False
    return fact.name != "open" or not _is_used_again(body, fact)


def _binds_nothing(node: Node) -> bool:
    if node[0] == "expr":
        return not _holds(node[2], ("walrus", "yield"))
    if node[0] in ("with", "for", "if"):
        return all(_binds_nothing(inner) for body in bodies_of(node) for inner in body)
    return False


def _holds(node: Any, kinds: tuple[str, ...]) -> bool:
    if not isinstance(node, list):
        return False
    return bool(node and node[0] in kinds and isinstance(node[0], str)) or any(_holds(part, kinds) for part in node)


def comes_after_a_wait(program: Program, fact: Fact) -> bool:
    """Whether the ranks take turns, and those who then see the file that another made do not write it.

    `if not is_root and not isfile(path): barrier()`, then `if isfile(path): return path`; or
    `with zero_first(rank):` round `if not exists(path):`.
    """
    for level in levels(program.body(fact.site.path), fact.site.statement):
        if Flag.IN_TURN in fact.flags and level.owner is not None and level.owner[0] == "if":
            if _asks_for_a_file(level.owner[2]):
                return True
        waiting = False
        for node in level.body[: level.at]:
            if node[0] != "if":
                continue
            if waiting and node[3][-1][0] == "return" and node[2][0] == "call" and _asks_for_a_file(node[2]):
                return True
            waiting = waiting or any(inner[0] == "expr" and _calls(inner[2], ("barrier",)) for inner in node[3])
    return False


def _asks_for_a_file(test: Any) -> bool:
    if not isinstance(test, list):
        return False
    if test and test[0] == "call" and _calls(test, ("exists", "isfile", "is_file")):
        return True
    return any(_asks_for_a_file(part) for part in test)


def _calls(node: Node, names: tuple[str, ...]) -> bool:
    """Whether an expression is a call of a function whose name ends with one of ``names``."""
    if node[0] != "call" or node[1][0] not in ("name", "attr"):
        return False
    return str(node[1][1 if node[1][0] == "name" else 2]).endswith(names)


def goes_unnoticed(program: Program, fact: facts.Save) -> bool:
    """Whether it is a ``torch.save`` which reaches no collective, and whose file nobody reads or moves afterwards."""
    body = program.body(fact.site.path)
    node = statement_at(body, fact.site.statement)
    if node is None or node[0] != "expr" or fact.role != "checkpoint":
        return False
    return not (
        _reaches_a_collective(program, fact, node)
        or any(_comes_again(load, fact) and load.who != "zero" for load in program.facts(facts.Load))
        or program.mentions(*_FINDERS)
        or any(save.order > fact.order and save.name in _PASSED_ON for save in program.facts(facts.Save))
        or _is_used_again(body, fact)
    )


def _comes_again(load: Fact, fact: Fact) -> bool:
    """Whether what is read may be what was written: it is read later, or in another turn of a loop around both."""
    turns = {loop.serial for loop in fact.loops}
    return load.order > fact.order or any(loop.serial in turns for loop in load.loops)


def _reaches_a_collective(program: Program, fact: Fact, node: Node) -> bool:
    first, last = fact.site.statement.line, end_of(node)[0]
    return any(
        site.path == fact.site.path and first <= site.span.line <= last
        for other in program.facts(facts.Collective, facts.Forward)
        for site in (*other.chain, other.site)
    )


def _is_used_again(body: list[Node], fact: Fact) -> bool:
    """Whether the function names the file once more behind the write, other than to tell of it."""
    call = call_at(body, fact.site.span)
    if call is None:
        return True
    at = 0 if fact.name == "open" else 1
    given = [*call[2][at : at + 1], *(value for name, value in call[3] if name in ("f", "filename", "file"))]
    if not given:
        return True
    path = _without_places(given[0])
    function = 0
    held = levels(body, fact.site.statement)
    for number, level in enumerate(held):
        if level.owner is not None and level.owner[0] == "def":
            function = number
    later = [node for level in held[function:] for node in level.body[level.at + 1 :]]
    return any(_names(node, path) for node in later)


def _names(node: Any, path: Any) -> bool:
    if not isinstance(node, list):
        return False
    if (
        node[:1] == ["call"]
        and len(node) == 5
        and (node[1][-1] if node[1][0] == "name" else node[1][2:3])
        in (
            *_SILENT,
            *([word] for word in _SILENT),
        )
    ):
        return False
    return _without_places(node) == path or any(_names(part, path) for part in node)


def _without_places(node: Any) -> Any:
    """An expression without its spans, so that two of them can be compared."""
    if not isinstance(node, list):
        return node
    if node and isinstance(node[0], str):
        kept = {"attr": 3, "sub": 3, "call": 4}.get(node[0], len(node))
        return [_without_places(part) for part in node[:kept]]
    return [_without_places(part) for part in node]
