"""What a rank uses of its machine: processor, memory, device. Asked by the heartbeat's thread; torch-free at import."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Usage"]


class Usage:
    """What this process uses; its loader's workers are processes of their own, and not in it. Local."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._utilization = _utilization(device) if device.type == "cuda" else None
        self._cpu, self._time = time.process_time(), time.monotonic()

    def now(self) -> dict[str, float | int | None]:
        """Of this process `cpu_percent` (since the last call; 100 is one core) and `memory_bytes`; of its GPU
        `device_percent` (of the time in which a kernel ran; needs nvidia-ml-py), `device_memory_bytes` (held by this
        process's allocator) and `device_total_bytes`. None where it cannot be had."""
        cpu, now = time.process_time(), time.monotonic()
        seconds = now - self._time
        found: dict[str, float | int | None] = {
            "cpu_percent": round(100 * (cpu - self._cpu) / seconds, 1) if seconds > 0 else None,
            "memory_bytes": _resident(),
            "device_percent": self._utilization() if self._utilization is not None else None,
            "device_memory_bytes": None,
            "device_total_bytes": None,
        }
        self._cpu, self._time = cpu, now
        if self._device.type == "cuda":
            import torch

            found["device_memory_bytes"] = int(torch.cuda.memory_reserved(self._device))
            found["device_total_bytes"] = int(torch.cuda.get_device_properties(self._device).total_memory)
        return found


def _utilization(device: torch.device) -> Callable[[], int | None] | None:
    """Asks for the share of time in which the GPU was busy; None without nvidia-ml-py."""
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    import torch

    nvml: Any = pynvml

    def ask() -> int | None:
        try:
            return int(torch.cuda.utilization(device))
        except (RuntimeError, nvml.NVMLError):  # a slice of a GPU (MIG) has no such counter
            return None

    return ask


def _resident() -> int:
    """Bytes of this process in memory now; where only its peak is told (not Linux), that."""
    table = Path("/proc/self/statm")
    if table.exists():
        return int(table.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
