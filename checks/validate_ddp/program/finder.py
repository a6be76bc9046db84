"""Where the modules of a program lie: imports resolved to files as Python would, and what they lead to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from validate_ddp.program.vocabulary import LIBRARIES

_HIGHEST = 4
_MOST_IMPORTS = 600
_SOURCE_FOLDERS = frozenset("lib libs src source sources python code core common scripts tools modules".split())


class Finder:
    """Finds the files of one program. What it has found is kept in the summaries, for the other programs of a run.

    entry: absolute path of the script; its folder comes first in the search for absolute imports, as in Python.
    """

    def __init__(self, summaries: Any, entry: str) -> None:
        self.summaries = summaries
        self._folders: dict[str, list[str]] = {}
        self.roots: list[str] = self._roots_of(entry)

    def find(self, dotted: str, level: int, importer: str) -> str | None:
        """The file or folder of a module of the program, or None for a library's."""
        if not level and dotted.partition(".")[0] in LIBRARIES:
            return None
        # What lies beside the importer is the same for all in its folder, unless the name may be the importer's own.
        name, folder = dotted.rpartition(".")[2], os.path.dirname(importer)
        key = ("module", dotted, level, "" if level else self.roots[0], importer if name in importer else folder)
        found: str | None = self.summaries.once(key, lambda: self._found(dotted, level, importer))
        return found

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
            for found in self._imported(pending.pop()):
                if wanted(found) or self.summaries.known((what, found)):
                    return True
                if found not in seen:
                    seen.add(found)
                    pending.append(found)
            if len(seen) >= _MOST_IMPORTS:
                return True
        return False

    def _imported(self, file: str) -> list[str]:
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
        if parts[0] in sys.stdlib_module_names:
            return None
        for root in self._beside(parts[0], importer):
            found = existing(root, parts, self.summaries)
            if found is not None and found != importer:
                return found
        return None

    def _roots_of(self, file: str) -> list[str]:
        folder = os.path.dirname(file)
        if folder not in self.summaries.roots:
            self.summaries.roots[folder] = search_roots(file)
        return self.summaries.roots[folder]  # type: ignore[no-any-return]

    def _beside(self, package: str, importer: str) -> list[str]:
        """Source folders beside the script's that hold ``package``: scripts put `lib/` and its like on ``sys.path``."""
        found = []
        for root in self._roots_of(importer)[1:]:
            if root not in self._folders:
                try:
                    with os.scandir(root) as rows:
                        self._folders[root] = sorted(
                            row.path for row in rows if row.name in _SOURCE_FOLDERS and row.is_dir()
                        )
                except OSError:
                    self._folders[root] = []
            found += [
                folder
                for folder in self._folders[root]
                if self.summaries.is_file(os.path.join(folder, package + ".py"))
                or self.summaries.is_folder(os.path.join(folder, package))
            ]
        return found


def search_roots(file: str) -> list[str]:
    """Folders in which absolute imports of ``file`` may lie: its own, then those above it up to the project's root."""
    folder = os.path.dirname(file)
    roots = []
    for _ in range(_HIGHEST):
        roots.append(folder)
        source = os.path.join(folder, "src")
        if os.path.isdir(source):
            roots.append(source)
        if any(os.path.exists(os.path.join(folder, mark)) for mark in (".git", "pyproject.toml", "setup.py")):
            break
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    return roots


def existing(base: str, parts: list[str], summaries: Any) -> str | None:
    """The file or folder of the module ``parts`` under the folder ``base``; None where there is none."""
    path = os.path.join(base, *parts) if parts else base
    if parts and summaries.is_file(path + ".py"):
        return path + ".py"
    if summaries.is_file(os.path.join(path, "__init__.py")):
        return os.path.join(path, "__init__.py")
    if summaries.is_folder(path) and summaries.is_namespace(path):
        return path
    return None
