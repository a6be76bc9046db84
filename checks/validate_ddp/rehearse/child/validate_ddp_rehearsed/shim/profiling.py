"""torch's profiler, which looks at the CPU alone: without it, each operation fails to record an event of CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..patching import patch

if TYPE_CHECKING:
    from ..patching import Handed, Original
    from ..session import Session


def install(session: Session) -> None:
    """Local."""

    def make(original: Original) -> Original:
        def begin(self: Handed, *args: object, **kwargs: object) -> None:
            if kwargs.get("use_cuda") or kwargs.get("use_device") == "cuda":
                session.note("the profiler looks at the CPU alone")
                kwargs = {**kwargs, "use_cuda": False, "use_device": None, "use_cpu": True}
            original(self, *args, **kwargs)

        return begin

    patch(session.torch.autograd.profiler.profile, "__init__", make)
