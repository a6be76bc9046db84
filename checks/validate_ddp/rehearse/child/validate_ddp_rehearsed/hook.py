"""Waits for the import of torch: until then nothing of ours is imported, and nothing is patched."""

from __future__ import annotations

import os
import sys
from typing import Any

START = os.getcwd()
"""Where the script was started: what its frames name is relative to it, even after a chdir."""


class _Loader:
    """The loader of torch, which tells us when the module is complete."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        module.__loader__ = module.__spec__.loader = self.loader
        from .session import begin

        begin(module)


class _Finder:
    """First in ``sys.meta_path`` until torch has been found."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)  # the search below must not come here again
        import importlib.util

        spec: Any = importlib.util.find_spec(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            sys.meta_path.insert(0, self)
            return spec
        spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Local. Makes ready for the import of torch; does nothing where torch is there already."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Finder())
        import atexit

        # The first one to be registered runs last: after a `destroy_process_group` that the script registers.
        atexit.register(_leave)


def _leave() -> None:
    module = sys.modules.get(__package__ + ".session") if __package__ else None
    if module is not None:
        module.leave()
