"""What a model draws at random when it runs, read from the text of its classes, which are not walked as a rule."""

from __future__ import annotations

from typing import Any

from validate_ddp.findings import Span
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.names_of_training import DROPPING
from validate_ddp.interpreter.values import Class, Function, Instance, Site, Symbol, bare
from validate_ddp.models.randomness import DRAWS
from validate_ddp.source.syntax import Assign, Attribute, Call, Constant, Expression, FunctionDef, List, Tuple
from validate_ddp.source.traversal import dotted, is_name, keywords_of, last_name, walk

_DEEPEST = 3
"""Models in models. Not said: what is drawn deeper is hardly the noise of a training step."""


def draws(machine: Machine, model: Any) -> None:
    """Record what a model's ``forward`` draws from the process's generators: nothing where no seed is set."""
    if not machine.loops or not any(isinstance(fact, facts.Seed) for fact in machine.facts):
        return
    for cls in _classes(machine, model):
        _of_class(machine, cls, 0, set())


def _classes(machine: Machine, model: Any) -> list[Class]:
    """Of what class of the program a model is, that was made here or out of sight."""
    if isinstance(model, Instance):
        return [model.cls]
    made = machine.late.get(id(model))
    return _meant(machine, (made.maker,)) if made is not None else []


def _meant(machine: Machine, value: Any) -> list[Class]:
    """The classes among what a name stands for, those of files that are not followed too."""
    found: list[Class] = []
    for atom in bare(value):
        if isinstance(atom, Symbol) and atom.name.startswith("program."):
            found += [other for other in bare(machine.library.followed(machine, atom.name)) if isinstance(other, Class)]
        elif isinstance(atom, Class):
            found.append(atom)
        elif isinstance(atom, Function) and isinstance(atom.node, FunctionDef):  # `def build(): return Net()`
            last = atom.node.body[-1] if atom.node.body else None
            made = getattr(last, "value", None)
            if isinstance(made, Call) and (not atom.bound):
                found += _named(machine, atom.module, made.func)
    return found


def _named(machine: Machine, module: Any, node: Expression) -> list[Class]:
    """The classes that a name of a module's top level, or of a module which it imports, stands for."""
    names = module.scope.names
    root, _, rest = (dotted(node) or "").partition(".")
    if root not in names or "." in rest:
        return []
    value = machine.library.forced(machine, names, root)
    if rest:
        value = tuple(
            part
            for atom in bare(value)
            if hasattr(atom, "module") and not isinstance(atom, (Class, Function))
            for part in machine.library.member(machine, atom.module, rest)
        )
    return _meant(machine, value) if not any(isinstance(atom, Function) for atom in value) else []


def _of_class(machine: Machine, cls: Class, depth: int, seen: set[int]) -> None:
    if id(cls.node) in seen or DROPPING.matches(cls.name):
        return
    seen.add(id(cls.node))
    methods = _methods(cls)
    words: set[str] = set()
    pending = ["forward"]
    while pending:
        function, node = methods.get(pending.pop(), (None, None))
        if function is None or node is None or node.name in words or "no_grad" in function.marks:
            continue
        words |= {node.name, *node.words}
        pending += [word for word in node.words if word in methods and word not in ("__init__", "forward")]
        _of_function(machine, function.module.path, node)
    for base in cls.lineage() if depth < _DEEPEST else ():
        makers = bare(base.members.get("__init__", ())) if isinstance(base, Class) else ()
        for made in makers:
            if isinstance(made, Function) and isinstance(made.node, FunctionDef):
                _of_parts(machine, made.module, made.node, words, depth, seen)


def _of_parts(machine: Machine, module: Any, maker: FunctionDef, words: set[str], depth: int, seen: set[int]) -> None:
    """What the models draw which a constructor puts into fields that ``forward`` speaks of."""
    for part in walk(maker.body):
        if isinstance(part, Assign) and any(_is_field(target, words) for target in part.targets):
            for call in walk(part.value):
                for inner in _named(machine, module, call.func) if isinstance(call, Call) else ():
                    _of_class(machine, inner, depth + 1, seen)


def _methods(cls: Class) -> dict[str, tuple[Function, FunctionDef]]:
    """The methods of a class of the program, its bases' too, by name."""
    return {
        function.name: (function, function.node)
        for base in reversed(cls.lineage())
        if isinstance(base, Class)
        for member in base.members.values()
        for function in bare(member)
        if isinstance(function, Function) and isinstance(function.node, FunctionDef)
    }


def _is_field(target: Expression, words: set[str]) -> bool:
    return isinstance(target, Attribute) and is_name(target.value, "self") and target.attr in words


def _of_function(machine: Machine, path: str, function: FunctionDef) -> None:
    for node in walk(function.body):
        if not isinstance(node, Call) or last_name(node.func) not in DRAWS or "generator" in keywords_of(node):
            continue
        if (dotted(node.func) or "").partition(".")[0] == "torch" and not _is_single(node):
            span = Span(*node.span)
            machine.record(facts.Draw(last_name(node.func)), Site(path, span, span, function.name))


def _is_single(node: Call) -> bool:
    """Whether one number is drawn, as for a decision."""
    size = keywords_of(node).get("size", node.args[-1] if node.args else None)
    sizes = size.elts if isinstance(size, (Tuple, List)) else node.args
    return all(isinstance(each, Constant) and each.value == 1 for each in sizes)
