"""``torch.compile`` compiles nothing, and keeps the name ``_orig_mod.`` of what it wraps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..patching import patch

if TYPE_CHECKING:
    from types import ModuleType

    from torch.nn import Module

    from ..session import Session


def install(session: Session) -> None:
    """Local."""
    torch = session.torch
    kind = _compiled(torch)

    def compile(model: object = None, *args: object, **kwargs: object) -> object:
        session.note("torch.compile compiles nothing")
        if model is None:
            return lambda each: compile(each)
        return kind(model) if isinstance(model, torch.nn.Module) else model

    def in_place(self: object, *args: object, **kwargs: object) -> None:
        session.note("torch.compile compiles nothing")

    patch(torch, "compile", lambda original: compile)
    patch(torch.nn.Module, "compile", lambda original: in_place)


def _compiled(torch: ModuleType) -> type:
    class OptimizedModule(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A module behind ``_orig_mod``, as torch.compile makes it."""

        def __init__(self, module: Module) -> None:
            super().__init__()
            self._orig_mod = module
            self.training = module.training

        def __getattr__(self, name: str) -> object:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("_orig_mod"), name)

        def forward(self, *args: object, **kwargs: object) -> object:
            return self._orig_mod(*args, **kwargs)

    return OptimizedModule
