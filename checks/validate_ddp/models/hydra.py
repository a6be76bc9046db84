"""Hydra: classes that a program's own configuration names, made where it asks for what stands under a key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from validate_ddp.interpreter import attributes, calls, candidates, facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.modules import Module
from validate_ddp.interpreter.rows import api
from validate_ddp.interpreter.values import Class, Function, Opaque, Symbol, Value, bare, join
from validate_ddp.models.unknown import unresolved
from validate_ddp.source.syntax import Assign, Constant, FunctionDef, Name, Node, Statement, Subscript
from validate_ddp.source.syntax import Call as CallNode
from validate_ddp.source.traversal import children, last_name, walk

_TARGET = "_target_"
_LINE = re.compile(r"^([ \t]*)((?:- +)*)([\w.-]+)[ \t]*:(?:[ \t]+['\"]?([\w.]*))?", re.MULTILINE)
_MOST_FILES = 400
"""Files of a configuration that are read. Not said: what the others name is not followed, as any library's."""
_MOST_ABOVE = 6
"""Folders from which the path of a configuration is tried: the file's own and those above it."""
_OWN = frozenset("config _recursive_ _convert_ _partial_ _target_ _args_".split())


def _made(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``instantiate(cfg.trainer, model)``: one of what the configuration names under ``trainer``, made of more options
    than are given here."""
    if "_partial_" in call.keywords:
        return unresolved(machine, symbol, call)
    given = {name: value for name, value in call.keywords.items() if name not in _OWN}
    filled = Call(call.name, call.args[1:], given, call.site)
    filled.open = True
    result: Value = ()
    for atom in _named(machine, call.value("config"), "", _is_item(call)):
        result = join(result, calls.call_atom(machine, atom, filled))
    return result or unresolved(machine, symbol, call)


def _class(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``get_class(cfg.trainer._target_)``"""
    return _named(machine, call.value("path"), _TARGET) or unresolved(machine, symbol, call)


def _is_item(call: Call) -> bool:
    """Whether what is asked for is written as an item: `config["trainer"]`, of which the value tells the key alone."""
    given = call.node.args[0] if call.node is not None and call.node.args else None
    return isinstance(given, Subscript) and isinstance(given.slice, Constant) and isinstance(given.slice.value, str)


def _named(machine: Machine, setting: Value, last: str, is_item: bool = False) -> Value:
    """What the configuration may name by this setting of it; nothing for one that has no name."""
    found: dict[str, None] = {}
    for atom in bare(setting):
        path = atom.name.split(".") if isinstance(atom, Opaque) else []
        path = path[:-1] if last and path[-1:] == [last] else path
        if len(path) > 1 or (path and (last or is_item)):
            found |= dict.fromkeys(_targets(machine).get(path[-1] if len(path) > 1 or is_item else "", ()))
    options = [atom for dotted in found for atom in _resolved(machine, dotted)]
    return candidates.among(machine, options, complete=False)


def _resolved(machine: Machine, dotted: str) -> list[Any]:
    """The function or class of the program by this name, in a module or in a class of one."""
    library, parts = machine.library, dotted.split(".")
    for count in range(len(parts) - 1, 0, -1):
        found = library.finder.find(".".join(parts[:count]), 0, machine.frame.module.file)
        if found is not None:
            value = library.member(machine, library.module(library.summaries.init_file(found)), parts[count])
            for name in parts[count + 1 :]:
                value = tuple(inner for atom in bare(value) for inner in attributes.get(machine, atom, name))
            return [atom for atom in bare(value) if isinstance(atom, (Function, Class))]
    return []


def _targets(machine: Machine) -> dict[str, list[str]]:
    """The names that the program's configuration holds, by the last key above each; by none at the top of a file."""
    library = machine.library
    folders = dict.fromkeys(folder for module in list(library.modules.values()) for folder in _folders(machine, module))

    def read() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for folder in folders:
            for file, group in _files(library.summaries, folder):
                text = (library.summaries.data(file) or b"").decode("utf-8", "replace")
                top = "" if "@package _global_" in text else group
                for key, dotted in _in_text(text):
                    found.setdefault(key or top, []).append(dotted)
        return found

    held: dict[str, list[str]] = library.summaries.once(("hydra", *folders), read)
    return held


def _folders(machine: Machine, module: Module) -> Iterator[str]:
    """Where the configuration lies of functions that hydra calls: ``@hydra.main(config_path="conf")``."""
    if b"config_path" not in (machine.library.summaries.data(module.file) or b""):
        return
    body = machine.library.body(module)
    for node in walk(body):
        for decorator in node.decorator_list if isinstance(node, FunctionDef) else ():
            if isinstance(decorator, CallNode) and last_name(decorator.func) == "main":
                given = [each.value for each in decorator.keywords if each.arg == "config_path"]
                words = [word for value in given for word in _words(value, body)]
                yield from _existing(machine, os.path.dirname(module.file), words)


def _words(node: Node, body: list[Statement]) -> Iterator[str]:
    """The parts of a path as it is written, here or where the file sets this name; what it looks up says none."""
    if isinstance(node, Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, Name):
        for each in body:
            if isinstance(each, Assign) and any(isinstance(to, Name) and to.id == node.id for to in each.targets):
                yield from _words(each.value, [])
    elif not isinstance(node, Subscript):
        for part in children(node):
            yield from _words(part, body)


def _existing(machine: Machine, start: str, words: list[str]) -> Iterator[str]:
    """The folder by this path, as seen from the file or from a folder above it, where the script is started."""
    for _ in range(_MOST_ABOVE if words else 0):
        folder = os.path.normpath(os.path.join(start, *words))
        if machine.library.summaries.is_folder(folder):
            yield folder
            return
        start = os.path.dirname(start)


def _files(summaries: Any, top: str) -> Iterator[tuple[str, str]]:
    """The files of a configuration, each with its group: the name of its folder, none at the top."""
    pending, count = [top], 0
    while pending and count < _MOST_FILES:
        folder = pending.pop()
        for name in sorted(summaries.listed(folder)):
            path = os.path.join(folder, name)
            if name.endswith((".yaml", ".yml")):
                count += 1
                yield path, "" if folder == top else os.path.basename(folder)
            elif "." not in name and summaries.is_folder(path):
                pending.append(path)


def _in_text(text: str) -> Iterable[tuple[str, str]]:
    """The names in a file, each with the key of the mapping that it stands in; lists stand under their key."""
    above: list[tuple[int, str]] = []
    for line in _LINE.finditer(text) if _TARGET in text else ():
        depth, key = len(line.group(1)) + len(line.group(2)), line.group(3)
        while above and above[-1][0] >= depth:
            above.pop()
        if key == _TARGET and line.group(4):
            yield above[-1][1] if above else "", line.group(4)
        elif key != _TARGET:
            above.append((depth, key))


DECLARED = (
    api("instantiate call", _made, within="hydra.utils", parameters="config", fact=facts.Launch),
    api("get_class get_method get_object", _class, within="hydra.utils", parameters="path", fact=facts.Launch),
)
