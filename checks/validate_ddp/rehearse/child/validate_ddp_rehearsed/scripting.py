"""TorchScript is switched off, as by PYTORCH_JIT=0: it compiles calls of torch, and cannot read our stubs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .patching import Original, patch

if TYPE_CHECKING:
    from .session import Session


def install(session: Session) -> None:
    """Local. What is scripted from now on runs as the Python that it is."""
    jit = session.torch.jit
    jit._state.disable()

    def script(original: Original) -> Original:
        def unscripted(*args: object, **kwargs: object) -> object:
            if not session.sites.called_by_torch():
                session.note("torch.jit.script compiles nothing")
            return original(*args, **kwargs)

        return unscripted

    patch(jit, "script", script)
