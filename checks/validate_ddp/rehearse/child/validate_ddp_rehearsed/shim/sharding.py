"""FSDP1 on the CPU: it refuses to run without an accelerator unless it is told that the CPU is the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..hook import when_complete
from ..patching import Original, guarded, patch

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_POSITION = 9
"""Of ``device_id`` among the arguments after ``self``."""
_ASKS_FOR_GPU = "_check_module_states_for_sync_module_states"
"""Refuses to send weights that lie on the CPU, where the shim keeps them."""


def install(session: Session) -> None:
    """Local. Patches the constructor once ``torch.distributed.fsdp`` is imported."""
    if session.torch.distributed.is_available():
        when_complete(
            "torch.distributed.fsdp", lambda fsdp: guarded(session.fault, "shim.sharding", _on_cpu, session, fsdp)
        )


def _on_cpu(session: Session, fsdp: ModuleType) -> None:
    cpu = session.torch.device("cpu")

    def init(original: Original) -> Original:
        def built(self: object, *args: object, **kwargs: object) -> None:
            session.note("FullyShardedDataParallel keeps its parameters on the CPU")
            if len(args) > _POSITION:
                args = (*args[:_POSITION], cpu, *args[_POSITION + 1 :])
            else:
                kwargs["device_id"] = cpu
            original(self, *args, **kwargs)

        return built

    patch(fsdp.FullyShardedDataParallel, "__init__", init)
    if hasattr(fsdp._init_utils, _ASKS_FOR_GPU):
        patch(fsdp._init_utils, _ASKS_FOR_GPU, lambda original: lambda states: None)
