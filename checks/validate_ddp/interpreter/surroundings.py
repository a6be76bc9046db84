"""What a fix has to know of the code round a place: imports, names that are bound there, and the bodies that hold it.

Asked only where something was found, so it may search; the walk itself never comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from validate_ddp.findings import Span
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.values import Instance, Lazy, Value, bare

Node = list[Any]

_BODIES = {
    "if": (3, 4),
    "for": (4, 5),
    "while": (3, 4),
    "with": (3,),
    "try": (2, 4, 5),
    "def": (4,),
    "class": (4,),
}


class Level(NamedTuple):
    """A body round a place: its statements, the one that holds the place, and whose body it is (None: the module's)."""

    body: list[Node]
    at: int
    owner: Node | None


def bodies_of(node: Node) -> list[list[Node]]:
    """The bodies of a lowered statement, in the order of the text."""
    found = [node[index] for index in _BODIES.get(node[0], ())]
    if node[0] == "try":
        found[1:1] = [handler[2] for handler in node[3]]
    if node[0] == "match":
        found = [case[2] for case in node[3]]
    return found


def levels(body: list[Node], span: Span) -> list[Level]:
    """The bodies that hold a place, outermost first."""
    found: list[Level] = []
    owner: Node | None = None
    current: list[Node] | None = body
    while current:
        starts = [index for index, node in enumerate(current) if tuple(node[1][:2]) <= (span.line, span.column)]
        if not starts:
            break
        index = starts[-1]
        found.append(Level(current, index, owner))
        owner = current[index]
        held = [inner for inner in bodies_of(owner) if inner and tuple(inner[0][1][:2]) <= (span.line, span.column)]
        current = held[-1] if held else None
    return found


def end_of(node: Node) -> tuple[int, int]:
    """Line and column behind a lowered statement, its bodies included."""
    ends = [(node[1][2], node[1][3])]
    ends += [end_of(inner[-1]) for inner in bodies_of(node) if inner]
    return max(ends)


def dotted(node: Node) -> str | None:
    """``a.b.c`` for an expression that is a name or attributes of one."""
    if node[0] == "name":
        return str(node[1])
    if node[0] == "attr":
        head = dotted(node[1])
        return None if head is None else f"{head}.{node[2]}"
    return None


def span_of(node: Node, outer: Span) -> Span | None:
    """Where an expression stands that begins at ``outer``; None where its kind has no span of its own."""
    if node[0] == "name":
        return Span(outer.line, outer.column, outer.line, outer.column + len(node[1].encode()))
    if node[0] in ("attr", "sub"):
        return Span(*node[3])
    return Span(*node[4]) if node[0] == "call" else None


def statement_at(body: list[Node], place: Span) -> Node | None:
    """The innermost lowered statement that begins where ``place`` does."""
    held = levels(body, place)
    node = held[-1].body[held[-1].at] if held else None
    return node if node is not None and tuple(node[1][:2]) == tuple(place[:2]) else None


def call_at(body: list[Node], span: Span) -> Node | None:
    """The lowered call with exactly this span."""
    held = levels(body, span)
    statement = held[-1].body[held[-1].at] if held else None
    todo: list[Any] = [statement] if statement else []
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            if len(node) == 5 and node[0] == "call" and node[4] == list(span):
                return node
            todo.extend(node)
    return None


def imported_as(body: list[Node], wanted: str, place: Span | None = None) -> str | None:
    """How a file writes the library's ``wanted``, such as ``torch.distributed``; None where no import gives it a name.

    The imports of the top level count, and those of the functions round ``place`` that come before it.
    """
    found = None
    for dotted_name, written in _imports(body, place):
        if wanted == dotted_name:
            return written
        if wanted.startswith(dotted_name + ".") and (found is None or len(dotted_name) > len(found[0])):
            found = dotted_name, f"{written}{wanted[len(dotted_name) :]}"
    return None if found is None else found[1]


def _imports(body: list[Node], place: Span | None) -> Iterator[tuple[str, str]]:
    rows = [body]
    if place is not None:
        rows += [level.body[: level.at] for level in levels(body, place)[1:]]
    for statements in rows:
        for node in statements:
            if node[0] == "import":
                for name, alias in node[2]:
                    if alias:
                        yield name, alias
                    else:
                        yield name, name
                        yield name.partition(".")[0], name.partition(".")[0]
            elif node[0] == "from" and not node[3]:
                for name, alias in node[4]:
                    if name != "*":
                        yield f"{node[2]}.{name}", alias or name
            elif node[0] == "try":
                yield from _imports(node[2], None)


def bound_names(body: list[Node], place: Span) -> list[str]:
    """Names that surely have a value at a place, the nearest last: parameters, and what statements before it bind."""
    held = levels(body, place)
    names: list[str] = []
    function = max((number for number, level in enumerate(held) if _owned_by(level, "def")), default=0)
    for number, level in enumerate(held):
        inside_class = _owned_by(level, "class")
        if level.owner is not None and not inside_class:
            names += _bound_by_header(level.owner)
        # Of the module, a function sees everything when it runs; of its own body, what came before.
        seen = level.body if number < function and number == 0 else level.body[: level.at]
        if not inside_class:
            for node in seen:
                names += bound_by(node)
    return list(dict.fromkeys(names))


def _owned_by(level: Level, kind: str) -> bool:
    return level.owner is not None and bool(level.owner[0] == kind)


def _bound_by_header(node: Node) -> list[str]:
    if node[0] == "def":
        rows, vararg, kwarg, _ = node[3]
        return [*(row[0] for row in rows), *(name for name in (vararg, kwarg) if name)]
    if node[0] == "for":
        return _targets(node[2])
    if node[0] == "with":
        return [name for _, target in node[2] if target is not None for name in _targets(target)]
    return []


def bound_by(node: Node) -> list[str]:
    """Names that a statement surely binds."""
    kind = node[0]
    if kind == "assign":
        return [name for target in node[2] for name in _targets(target)]
    if kind in ("def", "class"):
        return [node[2]]
    if kind == "with":
        return [*_bound_by_header(node), *(name for inner in node[3] for name in bound_by(inner))]
    if kind == "try":
        return [name for inner in node[2] for name in bound_by(inner)]
    if kind == "if":
        first, second = ({name for inner in node[index] for name in bound_by(inner)} for index in (3, 4))
        return sorted(first & second)  # the names of a main block too are there only sometimes
    return []


def _is_main_test(node: Node) -> bool:
    return bool(node[2][0] == "cmp" and node[2][1] == ["name", "__name__"])


def _targets(target: Node) -> list[str]:
    if target[0] == "name":
        return [target[1]]
    if target[0] == "seq":
        return [name for item in target[2] for name in _targets(item)]
    return []


def is_main_block(level: Level) -> bool:
    """Whether the body is that of ``if __name__ == "__main__":`` at the top level."""
    return _owned_by(level, "if") and _is_main_test(level.owner or [])


def held_by_names(body: list[Node], fact: Fact, wanted: Callable[[Value], bool]) -> Iterator[str]:
    """The names at a fact's place, also as ``self.x`` or ``args.x``, whose value is ``wanted``; the nearest first."""
    for name in reversed(bound_names(body, fact.site.statement)):
        value = _looked_up(fact.scope, name)
        if not value:
            continue
        if wanted(value):
            yield name
        for atom in bare(value) if len(value) == 1 else ():
            if isinstance(atom, Instance):
                always = _always_set(atom)
                yield from (f"{name}.{field}" for field in always if wanted(atom.fields.get(field) or ()))


def _always_set(instance: Instance) -> list[str]:
    """The fields that the constructor sets whatever happens: others may be missing in another kind of run."""
    for method in instance.cls.node[4]:
        if method[0] == "def" and method[2] == "__init__" and not any(map(returns_within, method[4])):
            myself = method[3][0][0][0] if method[3][0] else ""
            targets = [target for node in method[4] if node[0] == "assign" for target in node[2]]
            return [target[2] for target in targets if target[0] == "attr" and target[1] == ["name", myself]]
    return []


def returns_within(node: Node) -> bool:
    """Whether a statement holds a ``return`` of the function that it stands in."""
    if node[0] in ("def", "class"):
        return False
    return node[0] == "return" or any(returns_within(inner) for body in bodies_of(node) for inner in body)


def _looked_up(scope: Any, name: str) -> Value:
    while scope is not None:
        if name in scope.names:
            value: Value = scope.names[name]
            return () if any(isinstance(atom, (Lazy, str)) for atom in value) else value
        scope = scope.parent
    return ()


def written(body: list[Node], wanted: str, place: Span) -> str | None:
    """How to write the library's ``wanted`` at a place: as the file imports it, unless another value has that name."""
    name = imported_as(body, wanted, place)
    return None if name is None or name.partition(".")[0] in bound_names(body, place) else name
