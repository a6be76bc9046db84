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
        parts = [part for part in dotted.split(".") if part]
        if level:
            base = os.path.dirname(importer)
            for _ in range(level - 1):
                base = os.path.dirname(base)
            return existing(base, parts, self.summaries)
        if not parts or parts[0] in LIBRARIES:
            return None
        key = (dotted, self.roots[0], importer)
        if key not in self.summaries.located:
            self.summaries.located[key] = self._located(parts, importer)
        return self.summaries.located[key]  # type: ignore[no-any-return]

    def reaches(self, file: str) -> bool:
        """Whether a file imports, transitively and from wherever on disk, one that can matter."""
        return self._search(file, self.summaries.matters, self.summaries.reaching)

    def starts(self, file: str) -> bool:
        """Whether a script, or anything it imports, has a word without which no second rank can come into being."""
        return self.summaries.starts(file) or self._search(file, self.summaries.starts, self.summaries.starting)

    def _search(self, file: str, wanted: Callable[[str], bool], known: dict[str, bool]) -> bool:
        if file not in known:
            pending, seen = [file], {file}
            known[file] = False
            while pending and len(seen) < _MOST_IMPORTS and not known[file]:
                for found in self._imported(pending.pop()):
                    if wanted(found) or known.get(found, False):
                        known[file] = True
                    elif found not in seen:
                        seen.add(found)
                        pending.append(found)
            known[file] = known[file] or len(seen) >= _MOST_IMPORTS
        return known[file]

    def _imported(self, file: str) -> list[str]:
        """The files of the program that a file imports."""
        if file not in self.summaries.imported:
            from validate_ddp.source.prefilter import imports

            files: dict[str, None] = {}
            for name in imports(self.summaries.data(file) or b""):
                dotted = name.lstrip(".")
                found = self.find(dotted, len(name) - len(dotted), file)
                if found is not None and self.summaries.is_file(init_file(found)):
                    files[init_file(found)] = None
            self.summaries.imported[file] = list(files)
        return self.summaries.imported[file]  # type: ignore[no-any-return]

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


def init_file(path: str) -> str:
    """The file that importing ``path`` walks: a package's ``__init__``, or itself."""
    inside = os.path.join(path, "__init__.py")
    return inside if os.path.isdir(path) and os.path.isfile(inside) else path
