"""Automatic mixed precision of CUDA, on the CPU: float16 becomes bfloat16, scalers work on the CPU's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..patching import Original, patch

if TYPE_CHECKING:
    from ..session import Session


def install(session: Session) -> None:
    """Local. Patches the constructors of ``autocast`` and ``GradScaler``, so that ``isinstance`` stays right."""
    torch = session.torch

    def autocast(original: Original) -> Original:
        def init(
            self: object, device_type: str, dtype: object = None, enabled: bool = True, cache_enabled: object = None
        ) -> None:
            if device_type == "cuda":
                session.note("autocast of CUDA runs as autocast of the CPU, float16 as bfloat16")
                device_type = "cpu"
                dtype = torch.bfloat16 if dtype in (None, torch.float16) else dtype
            original(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

        return init

    def scaler(original: Original) -> Original:
        def init(self: object, device: str = "cuda", *args: object, **kwargs: object) -> None:
            original(self, "cpu" if device == "cuda" else device, *args, **kwargs)

        return init

    def cuda_autocast(original: Original) -> Original:
        def init(self: object, enabled: bool = True, dtype: object = None, cache_enabled: bool = True) -> None:
            torch.amp.autocast.__init__(self, "cuda", dtype, enabled, cache_enabled)

        return init

    patch(torch.amp.autocast, "__init__", autocast)
    patch(torch.amp.GradScaler, "__init__", scaler)
    patch(torch.cuda.amp.autocast, "__init__", cuda_autocast)
    for name, value in (
        ("is_autocast_enabled", lambda device_type="cpu": torch._C.is_autocast_cpu_enabled()),
        ("get_autocast_gpu_dtype", lambda: torch.bfloat16),
    ):
        if hasattr(torch, name):
            value.__wrapped__ = getattr(torch, name)  # type: ignore[attr-defined]
            setattr(torch, name, value)
