"""What a fix has to know of the code round a place: imports, names that are bound there, and the bodies that hold it.

Asked only where something was found, so it may search; the walk itself never comes here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from validate_ddp.findings import Span
from validate_ddp.interpreter.fact import Fact
from validate_ddp.interpreter.values import Instance, Lazy, Value, bare
from validate_ddp.source import syntax
from validate_ddp.source.syntax import Attribute, Expression, Name, Statement
from validate_ddp.source.traversal import asks_for_main, bodies_of, is_name, walk


class Level(NamedTuple):
    """A body round a place: its statements, the one that holds the place, and whose body it is (None: the module's)."""

    body: list[Statement]
    at: int
    owner: Statement | None


def levels(body: list[Statement], span: Span) -> list[Level]:
    """The bodies that hold a place, outermost first."""
    found: list[Level] = []
    owner: Statement | None = None
    current: list[Statement] | None = body
    while current:
        index = bisect_right(current, (span.line, span.column), key=_start) - 1
        if index < 0:
            break
        found.append(Level(current, index, owner))
        owner = current[index]
        held = [inner for inner in bodies_of(owner) if inner and _start(inner[0]) <= (span.line, span.column)]
        current = held[-1] if held else None
    return found


def _start(node: Statement) -> tuple[int, int]:
    line, column, _, _ = node.span
    return line, column


def end_of(node: Statement) -> tuple[int, int]:
    """Line and column behind a statement, its bodies included."""
    _, _, line, column = node.span
    ends = [(line, column)]
    ends += [end_of(inner[-1]) for inner in bodies_of(node) if inner]
    return max(ends)


def span_of(node: Expression, outer: Span) -> Span | None:
    """Where an expression stands that begins at ``outer``; None where its kind has no span of its own."""
    if isinstance(node, Name):
        return Span(outer.line, outer.column, outer.line, outer.column + len(node.id.encode()))
    return Span(*node.span) if isinstance(node, (Attribute, syntax.Subscript, syntax.Call)) else None


def statement_at(body: list[Statement], place: Span) -> Statement | None:
    """The innermost statement that begins where ``place`` does."""
    held = levels(body, place)
    node = held[-1].body[held[-1].at] if held else None
    return node if node is not None and _start(node) == (place.line, place.column) else None


def call_at(body: list[Statement], span: Span) -> syntax.Call | None:
    """The call with exactly this span."""
    held = levels(body, span)
    within = walk(held[-1].body[held[-1].at]) if held else ()
    return next((node for node in within if isinstance(node, syntax.Call) and node.span == span), None)


def imported_as(body: list[Statement], wanted: str, place: Span | None = None) -> str | None:
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


def _imports(body: list[Statement], place: Span | None) -> Iterator[tuple[str, str]]:
    rows = [body]
    if place is not None:
        rows += [level.body[: level.at] for level in levels(body, place)[1:]]
    for statements in rows:
        for node in statements:
            if isinstance(node, syntax.Import):
                for name, alias in node.names:
                    if alias:
                        yield name, alias
                    else:
                        yield name, name
                        yield name.partition(".")[0], name.partition(".")[0]
            elif isinstance(node, syntax.ImportFrom):
                for name, alias in node.names:
                    if name != "*" and not node.level:
                        yield f"{node.module}.{name}", alias or name
            elif isinstance(node, syntax.Try):
                yield from _imports(node.body, None)


def imported_names(body: list[Statement]) -> list[str]:
    """The names that the imports of a file's top level bind, whatever they stand for."""
    imports = [node for node in body if isinstance(node, (syntax.Import, syntax.ImportFrom))]
    return [alias or name.partition(".")[0] for node in imports for name, alias in node.names]


def bound_names(body: list[Statement], place: Span) -> list[str]:
    """Names that surely have a value at a place, the nearest last: parameters, and what statements before it bind."""
    held = levels(body, place)
    names: list[str] = []
    function = max(
        (number for number, level in enumerate(held) if isinstance(level.owner, syntax.FunctionDef)), default=0
    )
    for number, level in enumerate(held):
        inside_class = isinstance(level.owner, syntax.ClassDef)
        if level.owner is not None and not inside_class:
            names += _bound_by_header(level.owner)
        # Of the module, a function sees everything when it runs; of its own body, what came before.
        seen = level.body if number < function and number == 0 else level.body[: level.at]
        if not inside_class:
            for node in seen:
                names += bound_by(node)
    return list(dict.fromkeys(names))


def _bound_by_header(node: Statement) -> list[str]:
    if isinstance(node, syntax.FunctionDef):
        rest = (node.args.vararg, node.args.kwarg)
        return [*(parameter.name for parameter in node.args.parameters), *(name for name in rest if name)]
    if isinstance(node, syntax.For):
        return _targets(node.target)
    if isinstance(node, syntax.With):
        return [name for item in node.items if item.optional_vars is not None for name in _targets(item.optional_vars)]
    return []


def bound_by(node: Statement) -> list[str]:
    """Names that a statement surely binds."""
    if isinstance(node, syntax.Assign):
        return [name for target in node.targets for name in _targets(target)]
    if isinstance(node, (syntax.FunctionDef, syntax.ClassDef)):
        return [node.name]
    if isinstance(node, syntax.With):
        return [*_bound_by_header(node), *(name for inner in node.body for name in bound_by(inner))]
    if isinstance(node, syntax.Try):
        return [name for inner in node.body for name in bound_by(inner)]
    if isinstance(node, syntax.If):
        first, second = ({name for inner in body for name in bound_by(inner)} for body in (node.body, node.orelse))
        return sorted(first & second)  # the names of a main block too are there only sometimes
    return []


def _targets(target: Expression) -> list[str]:
    if isinstance(target, Name):
        return [target.id]
    if isinstance(target, (syntax.Tuple, syntax.List)):
        return [name for item in target.elts for name in _targets(item)]
    if isinstance(target, Attribute) and isinstance(target.value, Name):
        return [f"{target.value.id}.{target.attr}"]
    return []


def is_field_set(body: list[Statement], place: Span, name: str) -> bool:
    """Whether the class round a place sets ``self.x`` in one of its methods, and each that does so does it surely."""
    classes = [level.owner for level in levels(body, place) if isinstance(level.owner, syntax.ClassDef)]
    methods = [node for node in classes[-1].body if isinstance(node, syntax.FunctionDef)] if classes else []
    setting = [method for method in methods if any(map(partial(_sets, name=name), method.body))]
    return bool(setting) and all(
        any(name in bound_by(node) for node in method.body[: _left(method.body)]) for method in setting
    )


def _sets(node: Statement, name: str) -> bool:
    """Whether a statement sets a name, however deep within and under whatever condition."""
    if isinstance(node, syntax.Assign):
        return name in bound_by(node)
    return any(_sets(inner, name) for body in bodies_of(node) for inner in body)


def _left(body: list[Statement]) -> int:
    """How many statements of a function's body it surely comes to."""
    return next((number for number, node in enumerate(body) if returns_within(node)), len(body))


def is_main_block(level: Level) -> bool:
    """Whether the body is that of ``if __name__ == "__main__":`` at the top level."""
    return isinstance(level.owner, syntax.If) and asks_for_main(level.owner)


def held_by_names(body: list[Statement], fact: Fact, wanted: Callable[[Value], bool]) -> Iterator[str]:
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
    for method in instance.cls.node.body:
        if isinstance(method, syntax.FunctionDef) and method.name == "__init__":
            if any(map(returns_within, method.body)):
                continue
            myself = method.args.parameters[0].name if method.args.parameters else ""
            targets = [target for node in method.body if isinstance(node, syntax.Assign) for target in node.targets]
            fields = (target for target in targets if isinstance(target, Attribute))
            return [field.attr for field in fields if is_name(field.value, myself)]
    return []


def returns_within(node: Statement) -> bool:
    """Whether a statement holds a ``return`` of the function that it stands in."""
    if isinstance(node, (syntax.FunctionDef, syntax.ClassDef)):
        return False
    return isinstance(node, syntax.Return) or any(returns_within(inner) for body in bodies_of(node) for inner in body)


def _looked_up(scope: Any, name: str) -> Value:
    while scope is not None:
        if name in scope.names:
            value: Value = scope.names[name]
            return () if any(isinstance(atom, (Lazy, str)) for atom in value) else value
        scope = scope.parent
    return ()


def written(body: list[Statement], wanted: str, place: Span) -> str | None:
    """How to write the library's ``wanted`` at a place: as the file imports it, unless another value has that name."""
    name = imported_as(body, wanted, place)
    return None if name is None or name.partition(".")[0] in bound_names(body, place) else name
