"""``torch.compile`` compiles nothing, and keeps the name ``_orig_mod.`` of what it wraps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..session import Session


def install(session: Session) -> None:
    """Local."""
    torch = session.torch
    original = torch.compile
    kind = _compiled(torch)

    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        session.note("torch.compile compiles nothing")
        if model is None:
            return lambda each: compile(each)
        return kind(model) if isinstance(model, torch.nn.Module) else model

    def in_place(self: Any, *args: Any, **kwargs: Any) -> None:
        session.note("torch.compile compiles nothing")

    compile.__wrapped__ = original  # type: ignore[attr-defined]
    in_place.__wrapped__ = torch.nn.Module.compile  # type: ignore[attr-defined]
    torch.compile = compile
    torch.nn.Module.compile = in_place


def _compiled(torch: Any) -> Any:
    class OptimizedModule(torch.nn.Module):  # type: ignore[misc]
        """A module behind ``_orig_mod``, as torch.compile makes it."""

        def __init__(self, module: Any) -> None:
            super().__init__()
            self._orig_mod = module
            self.training = module.training

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("_orig_mod"), name)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self._orig_mod(*args, **kwargs)

    return OptimizedModule
