"""The state of a rank's process: taken over from the parent before each test, put back after it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import random
import sys
import threading
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import held

LEFT_OUT = ("PYTEST_CURRENT_TEST", "COLUMNS", "LINES")


@dataclass(frozen=True)
class ModuleHome:
    """Where the parent got a module from that ranks may not find by name. path: None for a namespace."""

    path: str | None
    search: tuple[str, ...] | None
    rewritten: bool


@dataclass(frozen=True)
class Context:
    """What a rank takes over from the parent. modules: see ``ModuleHome``; main: the script that was started."""

    environ: dict[str, str]
    folder: str
    path: list[str]
    arguments: list[str]
    filters: bytes
    modules: dict[str, ModuleHome] = field(default_factory=dict)
    main: str = ""


class ParentContext:
    """The parent's context, pickled; made anew only when something in it has changed."""

    def __init__(self) -> None:
        self.seen: tuple[object, ...] = ()
        self.pickled = b""

    def now(self, modules: dict[str, ModuleHome]) -> bytes:
        """The context as it is."""
        environ = dict(os.environ)
        for name in LEFT_OUT:
            environ.pop(name, None)
        main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            folder = os.path.sep
        seen = (environ, folder, list(sys.path), list(sys.argv), list(warnings.filters), dict(modules), main)
        if seen != self.seen:
            found = Context(environ, folder, seen[2], seen[3], _filters(), seen[5], os.path.abspath(main))
            self.pickled, self.seen = pickle.dumps(found, pickle.HIGHEST_PROTOCOL), seen
        return self.pickled


def _filters() -> bytes:
    try:
        return pickle.dumps(list(warnings.filters))
    except (pickle.PicklingError, AttributeError, TypeError):  # a category that was defined in a function
        kept = [entry for entry in warnings.filters if entry[2].__module__ == "builtins"]
        return pickle.dumps(kept)


class Finder(importlib.abc.MetaPathFinder):
    """Finds test modules and conftests under the names that they have in the parent, whatever the import mode."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleHome] = {}
        self.rewriter: Any = None
        """pytest's import hook, where pytest was prepared."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that the parent told us of."""
        home = self.modules.get(name)
        if home is None:
            return None
        search = None if home.search is None else list(home.search)
        if home.path is None:
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = search or []
            return spec
        loader = self.rewriter if home.rewritten else None
        return importlib.util.spec_from_file_location(name, home.path, loader=loader, submodule_search_locations=search)


finder = Finder()


class Baseline:
    """What a test finds: the same for each, on each rank. Made once in a rank, before its first test."""

    def __init__(self, launch: dict[str, str]) -> None:
        import torch

        self.torch = torch
        self.launch = launch
        self.context: Context | None = None
        torch.set_num_threads(1)
        random.seed(0)
        torch.default_generator.manual_seed(0)
        self.threads = threading.active_count()
        sys.meta_path.insert(0, finder)
        held.begin()
        self.keep()

    def keep(self) -> None:
        """Takes what is set now for what tests find."""
        self.values = held.values()

    def take_over(self, pickled: bytes) -> None:
        """Takes the parent's context; empty where it has not changed."""
        if pickled:
            found: Context = pickle.loads(pickled)  # noqa: S301 - from our parent
            finder.modules = found.modules
            self.context = found
            self._restore_environment()
        assert self.context is not None
        sys.path[:] = self.context.path
        sys.argv[:] = self.context.arguments
        os.chdir(self.context.folder)

    def name_job(self, serial: int, test: str) -> None:
        """The part of the environment that is another for each job."""
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(serial)
        if test:
            os.environ["PYTEST_CURRENT_TEST"] = f"{test} (call)"

    def _restore_environment(self) -> None:
        """The parent's variables and those of the launch. Only what differs is touched: C++ threads read them too."""
        assert self.context is not None
        wanted = {**self.context.environ, **self.launch}
        found = dict(os.environ)
        for name in found.keys() - wanted.keys():
            del os.environ[name]
        for name, value in wanted.items():
            if found.get(name) != value:
                os.environ[name] = value

    def apply_filters(self) -> None:
        """The parent's filters of warnings, within ``warnings.catch_warnings``."""
        assert self.context is not None
        try:
            filters = pickle.loads(self.context.filters)  # noqa: S301 - from our parent
        except (ImportError, AttributeError):  # a category of a module that is not there
            return
        warnings.resetwarnings()
        warnings.filters[:] = filters  # type: ignore[index]

    def reset(self) -> str:
        """Puts back what tests change. Returns why this process should not be used again, else an empty string."""
        torch = self.torch
        self._restore_environment()
        if torch.is_autocast_enabled() or torch.is_inference_mode_enabled():
            return "it was left in autocast or inference mode"
        left = held.replaced() or held.put_back(self.values)
        if left:
            return left
        if threading.active_count() > self.threads:
            names = [thread.name for thread in threading.enumerate()][self.threads :]
            return f"threads were left running: {', '.join(names)}"
        return ""
