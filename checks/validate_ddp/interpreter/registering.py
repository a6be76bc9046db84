"""Registries: what a decorator puts aside under a name, and is looked up by a name that only a run knows.

A definition is bound to its node until somebody looks it up, and nobody looks up what is only registered: its decorator
is carried out here, when a registry is asked for something.
"""

from __future__ import annotations

import os
import re
from typing import Any

from validate_ddp.interpreter import candidates
from validate_ddp.interpreter.machine import Frame, Machine
from validate_ddp.interpreter.objects import Dict
from validate_ddp.interpreter.values import Class, Function, Instance, Lazy, Value, bare, join
from validate_ddp.source.syntax import Assign, Call, ClassDef, FunctionDef
from validate_ddp.source.traversal import dotted

_WORD = "regist"
"""What decorators and files of registries say somewhere. It only spares walks: one without the word is not found."""
_DECORATED = re.compile(rb"^@[\w.]*regist", re.MULTILINE | re.IGNORECASE)
_MOST_FILES = 400


class Register(Dict):
    """A registry of a library's class: `Registry("models")` of fvcore, mmengine and others."""

    __slots__ = ()


def is_registry(machine: Machine, atom: Any) -> bool:
    """Whether an object's class speaks of registering: its methods are walked whatever they are given."""
    if not isinstance(atom, Instance):
        return False
    cls = atom.cls
    found: bool = machine.library.summaries.once(
        ("registry", cls.module.file, cls.node.span), lambda: _speaks_of_it(cls.node)
    )
    return found


def names_one(machine: Machine, function: Function) -> bool:
    """Whether a function speaks of a registry of its module: ``HOOKS.build(cfg)`` makes one of what it holds."""
    module, node = function.module, function.node
    if not isinstance(node, FunctionDef) or _WORD.encode() not in _lowered(machine, module.file):
        return False
    names = module.scope.names
    for word in dict.fromkeys(node.words):
        if word in names and not isinstance(names[word][0], (Function, Class)) and _may_hold(names[word][0]):
            held = bare(machine.library.forced(machine, names, word))
            if any(isinstance(atom, Register) or is_registry(machine, atom) for atom in held):
                machine.library.heed(word)
                return True
    return False


def _may_hold(atom: Any) -> bool:
    """Whether a name of a module may be bound to an object: by an assignment, or by an import that was not followed."""
    return not isinstance(atom, Lazy) or atom.node is None or isinstance(atom.node, Assign)


def _lowered(machine: Machine, file: str) -> bytes:
    summaries = machine.library.summaries
    data: bytes = summaries.once(("lowered", file), lambda: (summaries.data(file) or b"").lower())
    return data


def _speaks_of_it(node: ClassDef) -> bool:
    methods = [part.name for part in node.body if isinstance(part, FunctionDef)]
    return any(_WORD in word.lower() for word in (node.name, *methods))


def looked_up(machine: Machine, holder: Dict) -> Value:
    """``holder[name]``, where only a run knows the name."""
    held: Value = ()
    atoms: list[Any] = []
    for value in holder.fields.values():
        held = join(held, value)
        atoms += bare(value)
    options = [atom for atom in dict.fromkeys(atoms) if isinstance(atom, (Function, Class))]
    if len(options) < 2 or len(options) < len(atoms):
        return held
    return candidates.among(machine, options) or (held if len(held) == len(options) else ())


def complete(machine: Machine, holder: Dict) -> None:
    """Carry out what the program's modules register, if ``holder`` may be a registry; once for a program."""
    if machine.has_registered or not _may_be_one(machine, holder):
        return
    machine.has_registered = True
    frames, machine.frames = machine.frames, machine.frames[:1]
    aside = machine.journals, machine.guards, machine.loops
    machine.journals, machine.guards, machine.loops = [], [], []
    machine.registering = True
    try:
        for file in _files(machine):
            if _registers(machine, file):
                _carry_out(machine, machine.library.module(file))
    finally:
        machine.registering = False
        machine.frames = frames
        machine.journals, machine.guards, machine.loops = aside


def _registers(machine: Machine, file: str) -> bool:
    """Whether a decorator in the file registers something: asked for each program, of files that many have."""
    summaries = machine.library.summaries
    found: bool = summaries.once(
        ("registers", file), lambda: _DECORATED.search(summaries.data(file) or b"") is not None
    )
    return found


def _may_be_one(machine: Machine, holder: Dict) -> bool:
    if isinstance(holder, Register):
        return True
    if holder.site.function not in ("", "__init__"):
        return False
    return _WORD.encode() in _lowered(machine, os.path.abspath(holder.site.path))


def _files(machine: Machine) -> list[str]:
    """The files that the entry imports, and those of packages that import all that lies in them."""
    library = machine.library
    pending, seen = [library.finder.entry], {library.finder.entry: None}
    while pending and len(seen) < _MOST_FILES:
        file = pending.pop(0)
        found = library.finder.imported(file)
        if os.path.basename(file) == "__init__.py" and b"import_module" in (library.summaries.data(file) or b""):
            folder = os.path.dirname(file)
            names = [os.path.join(folder, name) for name in sorted(library.summaries.listed(folder))]
            found = [*found, *(name for name in names if name.endswith(".py"))]
        for other in found:
            if other not in seen:
                seen[other] = None
                pending.append(other)
    return list(seen)


def _carry_out(machine: Machine, module: Any) -> None:
    library = machine.library
    library.load(machine, module)
    names = module.scope.names
    for node in library.body(module):
        if not isinstance(node, (FunctionDef, ClassDef)) or node.name not in names:
            continue
        for decorator in reversed(node.decorator_list):
            called = decorator.func if isinstance(decorator, Call) else decorator
            if _WORD not in (dotted(called) or "").lower():
                continue
            defined = library.forced(machine, names, node.name)
            machine.frames.append(Frame(module, module.scope, None, None))
            try:
                for atom in bare(machine.evaluate(decorator)):
                    machine.call(atom, defined)
            finally:
                machine.frames.pop()
