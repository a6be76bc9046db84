"""Whether a second rank can come into being in what a script reaches: told by names, before any walk.

A walk costs a hundred times as much as following names, and most scripts of a project that trains on several ranks do
not do so themselves: they import a module whose other functions do. Names are followed generously: of a method the
name alone counts, in whatever class; a branch that is never taken counts too.
"""

from __future__ import annotations

import os
import re
from typing import Any

from validate_ddp.interpreter import registering
from validate_ddp.interpreter.finder import Finder, existing
from validate_ddp.interpreter.outlines import STARTS, Origin, Outline, Words, outline

_BY_NAME = frozenset({"import_module", "__import__"})
"""What finds a module by a string."""
_ANY_NAME = re.compile(rb"(?<![.\w])(?:eval|globals)\(|(?:Fire|CLI|auto_cli)\(\s*\)")
"""What calls a definition of its own module that it does not name."""


def without_ranks(finder: Finder, script: str) -> list[str] | None:
    """The files that running a script imports which cannot start, wrap for, or share data between several ranks, as far
    as names tell; None for one that may."""
    reach = _Reach(finder)
    try:
        return None if reach.starts(script) else reach.files()
    except RecursionError:
        return None


class _Reach:
    """What is reached so far: the files that are imported, the words that are met, the modules that are objects."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._summaries = finder.summaries
        self._pending: list[tuple[str, Words]] = []
        self._loaded: dict[str, Outline] = {}
        self._words: set[str] = set()
        self._reached: set[tuple[str, str]] = set()
        self._methods: dict[str, list[tuple[str, Words]]] = {}
        self._members: dict[str, list[str]] = {}
        self._objects: set[str] = set()
        self._said: list[tuple[str, str]] = []
        """Strings that may be the names of modules, with the file that holds each."""
        self._finds = False

    def starts(self, script: str) -> bool:
        loaded = self._load(script)
        if loaded is None:
            return True
        self._pending.append((script, loaded.main))
        for file in self._registering(script):
            self._load(file)
        while self._pending:
            file, words = self._pending.pop()
            if STARTS in words:
                return True
            self._follow(file, frozenset(words))
        return False

    def files(self) -> list[str]:
        """What was reached, and what that imports."""
        imported = (found for file in self._loaded for found in self._finder.imported(file))
        return list(dict.fromkeys((*self._loaded, *imported)))

    def _follow(self, file: str, words: frozenset[str]) -> None:
        """Follow the words of code in a file."""
        if "getattr" in words:
            words = words | {word[1:] for word in words if word.startswith('"')}
            for name in words & self._loaded[file].imports.keys():
                for origin in self._loaded[file].imports[name]:
                    self._all_of(file, origin)
        for name in words & self._loaded[file].names:
            self._reach(file, name)
        if self._loaded[file].stars:
            for name in words - self._loaded[file].names:
                self._starred(file, name, set())
        for word in words - self._words:
            self._words.add(word)
            if word in _BY_NAME:
                self._finds = True
                for said in list(self._said):
                    self._named(*said)
            elif word.startswith('"'):
                self._said.append((file, word))
                if self._finds:
                    self._named(file, word)
            self._pending += self._methods.get(word, ())
            for holder in self._members.get(word, ()):
                self._member(holder, word)

    def _reach(self, file: str, name: str) -> None:
        if (file, name) in self._reached:
            return
        self._reached.add((file, name))
        held = self._loaded[file].held.get(name)
        if held is not None:
            self._pending.append((file, held))
        for module, level, member in self._loaded[file].imports.get(name, ()):
            for wanted in dict.fromkeys((module, module.partition(".")[0])) if not member else (module,):
                found = self._finder.find(wanted, level, file)
                if found is not None and member:
                    self._member(self._summaries.init_file(found), member)
                elif found is not None:
                    self._object(self._summaries.init_file(found))

    def _named(self, file: str, text: str) -> None:
        """A string that may be a module's name, or the beginning of the names of several."""
        dotted = text.lstrip('"').strip(".")
        found = self._finder.find(dotted, 0, file)
        if found is None:
            return
        self._object(self._summaries.init_file(found))
        folder = os.path.dirname(found) if os.path.basename(found) == "__init__.py" else found
        if self._summaries.is_folder(folder):
            for module in _modules(folder, self._summaries):
                self._object(module)

    def _all_of(self, file: str, origin: Origin) -> None:
        """``getattr(module, name)``: all that the module holds."""
        module, level, member = origin
        for dotted in (module, f"{module}.{member}" if module else member):
            found = self._finder.find(dotted, level, file)
            target = self._summaries.init_file(found) if found is not None else None
            loaded = self._load(target) if target is not None and self._summaries.is_file(target) else None
            for name in loaded.names if loaded is not None and (dotted != module or not member) else ():
                self._reach(str(target), name)

    def _member(self, file: str, name: str) -> None:
        """What ``name`` of a module is, or of a folder of modules."""
        if self._summaries.is_file(file):
            loaded = self._load(file)
            if loaded is None:
                return
            if name in loaded.names:
                self._reach(file, name)
                return
            if self._starred(file, name, set()):
                return
            if os.path.basename(file) != "__init__.py":
                return
            folder = os.path.dirname(file)
        else:
            folder = file
        inside = existing(folder, [name], self._summaries)
        if inside is not None:
            self._object(self._summaries.init_file(inside))
        elif folder == file:
            for module in _modules(folder, self._summaries):
                loaded = self._load(module) if name.encode() in (self._summaries.data(module) or b"") else None
                if loaded is not None and name in loaded.names:
                    self._reach(module, name)

    def _starred(self, file: str, name: str, seen: set[str]) -> bool:
        """Whether a star import of the file brings the name, which then is reached."""
        seen.add(file)
        for module, level, _ in self._loaded[file].stars:
            found = self._finder.find(module, level, file)
            target = self._summaries.init_file(found) if found is not None else None
            if target is None or target in seen or not self._summaries.is_file(target):
                continue
            loaded = self._load(target)
            if loaded is not None and name in loaded.names:
                self._reach(target, name)
                return True
            if loaded is not None and self._starred(target, name, seen):
                return True
        return False

    def _object(self, file: str) -> None:
        """A module is handed about: whatever is called after one of its names may be meant."""
        if file in self._objects:
            return
        self._objects.add(file)
        names: set[str] = set()
        if self._summaries.is_file(file):
            names |= self._names(file, set())
        folder = os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file
        if self._summaries.is_folder(folder):
            names |= {name.removesuffix(".py") for name in self._summaries.listed(folder)}
            if folder == file:
                for module in _modules(folder, self._summaries):
                    names |= self._names(module, set())
        for name in names:
            self._members.setdefault(name, []).append(file)
            if name in self._words:
                self._member(file, name)

    def _names(self, file: str, seen: set[str]) -> set[str]:
        loaded = self._load(file)
        if loaded is None:
            return set()
        seen.add(file)
        names = set(loaded.names)
        for module, level, _ in loaded.stars:
            found = self._finder.find(module, level, file)
            target = self._summaries.init_file(found) if found is not None else None
            if target is not None and target not in seen and self._summaries.is_file(target):
                names |= self._names(target, seen)
        return names

    def _load(self, file: str) -> Outline | None:
        """The outline of a module that is imported; None for one that no walk follows."""
        if file in self._loaded:
            return self._loaded[file]
        if self._loaded and not (self._summaries.follows(file) or self._finder.reaches(file)):
            return None
        found: Outline = self._summaries.once(("outline", file), lambda: outline(self._summaries.body(file) or []))
        self._loaded[file] = found
        self._pending.append((file, found.top))
        for name, words in found.methods.items():
            self._methods.setdefault(name, []).append((file, words))
            if name in self._words:
                self._pending.append((file, words))
        if self._summaries.once(("any name", file), lambda: _names_any(self._summaries.data(file) or b"")):
            for name in found.names if os.path.basename(file) == "__init__.py" else found.held:
                self._reach(file, name)
        if "*" in found.held:
            self._pending.append((file, found.held["*"]))
        for target in self._finder.imported(file):
            if self._summaries.acts_at_import(target):
                self._load(target)
        return found

    def _registering(self, script: str) -> list[str]:
        """The files that the script imports, wherever, in which something is registered."""
        pending, seen = [script], {script: None}
        while pending:
            for found in self._finder.imported(pending.pop()):
                if found not in seen:
                    seen[found] = None
                    pending.append(found)
        return [file for file in seen if registering.registers(self._summaries, file)]


def _names_any(data: bytes) -> bool:
    return _ANY_NAME.search(data) is not None


def _modules(folder: str, summaries: Any) -> list[str]:
    return [os.path.join(folder, name) for name in sorted(summaries.listed(folder)) if name.endswith(".py")]
