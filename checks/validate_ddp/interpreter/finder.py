"""Where the modules of a program lie: imports resolved to files as Python would, and what they lead to."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

from validate_ddp.interpreter.vocabulary import COMMON_NAMES, LIBRARIES

_HIGHEST = 4
"""Folders, the script's own and those above it, in which its imports are looked for where no mark tells the project's
root. Not said: a module that is not found is taken for a library, as any other that is not there."""
_FARTHEST = 12
"""So many folders up, the project's root is looked for by its marks. Not said: no project is nested that deep."""
_MOST_IMPORTS = 600
"""From so many files on, a script is taken to reach what matters: that costs a walk and loses nothing."""
_PROJECT_MARKS = (".git", "pyproject.toml", "setup.py")
_SOURCE_FOLDERS = frozenset("lib libs src source sources python code core common scripts tools modules".split())


class Finder:
    """Finds the files of one program. What it has found is kept in the summaries, for the other programs of a run.

    entry: absolute path of the script; its folder comes first in the search for absolute imports, as in Python.
    """

    def __init__(self, summaries: Any, entry: str) -> None:
        self.summaries = summaries
        # Which files were missed counts for each script, but only where something is remembered of it.
        shared = summaries.cache is None
        self._known: dict[tuple[str, int, str], str | None] = summaries.located(entry) if shared else {}
        self.entry = entry
        self.roots: list[str] = self._roots_of(entry)

    def find(self, dotted: str, level: int, importer: str) -> str | None:
        """The file or folder of a module of the program, or None for a library's."""
        asked = (dotted, level, importer)
        if asked not in self._known:
            self._known[asked] = self._find(dotted, level, importer)
        return self._known[asked]

    def _find(self, dotted: str, level: int, importer: str) -> str | None:
        if not level and self.is_library(dotted):
            return None
        # What lies beside the importer is the same for all in its folder, unless the name may be the importer's own.
        name, folder = dotted.rpartition(".")[2], os.path.dirname(importer)
        key = ("module", dotted, level, "" if level else self.roots[0], importer if name in importer else folder)
        found: str | None = self.summaries.once(key, lambda: self._found(dotted, level, importer))
        return found

    def is_library(self, dotted: str) -> bool:
        """Whether an absolute import of this name is one of a library that is not followed."""
        root = dotted.partition(".")[0]
        if root not in COMMON_NAMES:
            return root in LIBRARIES
        found = existing(self.roots[0], dotted.split("."), self.summaries)
        return found is None or self.summaries.is_folder(found)  # an installed package goes before a bare folder

    def _found(self, dotted: str, level: int, importer: str) -> str | None:
        parts = [part for part in dotted.split(".") if part]
        if level:
            base = os.path.dirname(importer)
            for _ in range(level - 1):
                base = os.path.dirname(base)
            return existing(base, parts, self.summaries)
        return self._located(parts, importer) if parts else None

    def reaches(self, file: str) -> bool:
        """Whether a file imports, transitively and from wherever on disk, one that can matter."""
        return self._search(file, "reaches", self.summaries.matters)

    def starts(self, file: str) -> bool:
        """Whether a script, or anything it imports, has a word without which no second rank can come into being."""
        return self.summaries.starts(file) or self._search(file, "starts", self.summaries.starts)

    def _search(self, file: str, what: str, wanted: Callable[[str], bool]) -> bool:
        found: bool = self.summaries.once((what, file), lambda: self._leads(file, what, wanted))
        return found

    def _leads(self, file: str, what: str, wanted: Callable[[str], bool]) -> bool:
        pending, seen = [file], {file}
        while pending:
            for found in self.imported(pending.pop()):
                if wanted(found) or self.summaries.known((what, found)):
                    return True
                if found not in seen:
                    seen.add(found)
                    pending.append(found)
            if len(seen) >= _MOST_IMPORTS:
                return True
        return False

    def imported(self, file: str) -> list[str]:
        """The files of the program that a file imports."""
        found: list[str] = self.summaries.once(("imported", file), lambda: self._imports_of(file))
        return found

    def _imports_of(self, file: str) -> list[str]:
        files: dict[str, None] = {}
        for name in self.summaries.imports(file):
            dotted = name.lstrip(".")
            found = self.find(dotted, len(name) - len(dotted), file)
            if found is not None and self.summaries.is_file(self.summaries.init_file(found)):
                files[self.summaries.init_file(found)] = None
        return list(files)

    def _located(self, parts: list[str], importer: str) -> str | None:
        roots = dict.fromkeys((*self.roots, *self._roots_of(importer)))
        for root in roots:
            found = existing(root, parts, self.summaries)
            if found is not None and found != importer:
                return found
        for root in roots:  # a project's root may be a package itself: `from benchmark.common import run`
            if _is_called(os.path.basename(root), parts):
                found = existing(root, parts[1:], self.summaries)
                if found is not None and found != importer:
                    return found
        if parts[0] in sys.stdlib_module_names:
            return None
        for root in (*self._beside(parts[0], importer), *self._of_workspace(parts[0], importer)):
            found = existing(root, parts, self.summaries)
            if found is not None and found != importer:
                return found
        return None

    def _roots_of(self, file: str) -> list[str]:
        folder = os.path.dirname(file)
        if folder not in self.summaries.roots:
            self.summaries.roots[folder] = search_roots(file, self.summaries)
        return self.summaries.roots[folder]  # type: ignore[no-any-return]

    def _beside(self, package: str, importer: str) -> list[str]:
        """Source folders beside the script's that hold ``package``: scripts put `lib/` and its like on ``sys.path``."""
        found = []
        for root in self._roots_of(importer)[1:]:
            for name in sorted(_SOURCE_FOLDERS & self.summaries.listed(root)):
                folder = os.path.join(root, name)
                inside = os.path.join(folder, package)
                if self.summaries.is_file(inside + ".py") or self.summaries.is_folder(inside):
                    found.append(folder)
        return found

    def _of_workspace(self, package: str, importer: str) -> list[str]:
        """Projects that hold ``package``, beside the importer's own in a folder that is a project too: parts of one
        repository that are installed each by itself. What lies beside it in a folder of many repositories is none."""
        own = next((root for root in self._roots_of(importer) if _is_marked(root, self.summaries)), None)
        above = os.path.dirname(own) if own is not None else ""
        if not above or above == own or not _is_marked(above, self.summaries):
            return []
        found = []
        for name in sorted(self.summaries.listed(above)):
            folder = os.path.join(above, name)
            if name.startswith(".") or folder == own or not self.summaries.is_folder(folder):
                continue
            for base in (folder, os.path.join(folder, "src")):
                if self.summaries.is_folder(os.path.join(base, package)) and _is_marked(folder, self.summaries):
                    found.append(base)
        return found


def _is_marked(folder: str, summaries: Any) -> bool:
    return not summaries.listed(folder).isdisjoint(_PROJECT_MARKS)


def _is_called(folder: str, parts: list[str]) -> bool:
    """Whether the folder is the package that is imported from, or a copy of it: `benchmark-main`, `me+benchmark`."""
    if folder == parts[0]:
        return True
    return len(parts) > 1 and parts[0] in re.split(r"\W", folder) and parts[0] not in sys.stdlib_module_names


def search_roots(file: str, summaries: Any) -> list[str]:
    """Folders in which absolute imports of ``file`` may lie: its own, then those above it up to the project's root."""
    roots = []
    for folder in _up_to_root(os.path.dirname(file), summaries):
        roots.append(folder)
        source = os.path.join(folder, "src")
        if summaries.is_folder(source):
            roots.append(source)
    return roots


def _up_to_root(folder: str, summaries: Any) -> list[str]:
    """The folder and those above it up to the one with a project's mark; a few where none is found."""
    folders: list[str] = []
    while len(folders) < _FARTHEST:
        folders.append(folder)
        if not summaries.listed(folder).isdisjoint(_PROJECT_MARKS):
            return folders
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    return folders[:_HIGHEST]


def existing(base: str, parts: list[str], summaries: Any) -> str | None:
    """The file or folder of the module ``parts`` under the folder ``base``; None where there is none."""
    path = os.sep.join((base.removesuffix(os.sep), *parts)) if parts else base
    if parts and summaries.is_file(path + ".py"):
        return path + ".py"
    if not summaries.is_folder(path):
        return None
    inside: str = summaries.init_file(path)
    return inside if inside != path or summaries.is_namespace(path) else None
