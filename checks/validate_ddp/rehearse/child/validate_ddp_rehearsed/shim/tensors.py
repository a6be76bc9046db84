"""Moves of tensors and modules to a GPU leave them where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..patching import Original, patch

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session
    from .devices import Devices


def install(session: Session) -> None:
    """Local. Patches the methods of Tensor and Module that move, and what tells whether a tensor is on a GPU."""
    torch = session.torch
    devices = session.devices
    _moves(torch.Tensor, devices)
    _modules(torch.nn.Module, devices)
    _is_cuda(torch, session)
    patch(torch, "load", lambda original: _load(original, devices))
    _pinning(torch, session)


def _moves(tensor: type, devices: Devices) -> None:
    def cuda(original: Original) -> Original:
        def moved(self: object, device: object = None, *args: object, **kwargs: object) -> object:
            devices.mapped("cuda" if device is None else device, "cuda")
            return self

        return moved

    patch(tensor, "to", lambda original: _to(original, devices))
    patch(tensor, "cuda", cuda)


def _modules(module: type, devices: Devices) -> None:
    def cuda(original: Original) -> Original:
        def moved(self: object, device: object = None) -> object:
            devices.mapped("cuda" if device is None else device, "cuda")
            return self

        return moved

    def to_empty(original: Original) -> Original:
        def moved(self: object, *, device: object, recurse: bool = True) -> object:
            return original(self, device=devices.mapped(device, "to_empty"), recurse=recurse)

        return moved

    patch(module, "to", lambda original: _to(original, devices))
    patch(module, "cuda", cuda)
    patch(module, "to_empty", to_empty)


def _to(original: Original, devices: Devices) -> Original:
    """Of a tensor or a module, whose device may come by place or by name."""

    def moved(self: object, *args: object, **kwargs: object) -> object:
        if args and devices.index_of(args[0]) is not None:
            args = (devices.mapped(args[0], "to"), *args[1:])
        if kwargs.get("device") is not None:
            kwargs["device"] = devices.mapped(kwargs["device"], "to")
        return original(self, *args, **kwargs)

    return moved


def _is_cuda(torch: ModuleType, session: Session) -> None:
    real = torch._C.TensorBase.is_cuda
    worker = torch.utils.data.get_worker_info

    def is_cuda(self: object) -> bool:
        # Torch's own code must see the truth, or it takes paths that need a GPU; a loader's worker makes its tensors on
        # the CPU.
        return bool(real.__get__(self)) or not (session.sites.called_by_torch() or worker() is not None)

    torch.Tensor.is_cuda = property(is_cuda)


def _load(original: Original, devices: Devices) -> Original:
    def load(f: object, map_location: object = None, *args: object, **kwargs: object) -> object:
        if isinstance(map_location, dict):
            map_location = {key: devices.mapped(value, "load") for key, value in map_location.items()}
        elif map_location is None or callable(map_location):
            map_location = map_location or devices.cpu
        else:
            map_location = devices.mapped(map_location, "load")
        return original(f, map_location, *args, **kwargs)

    return load


def _pinning(torch: ModuleType, session: Session) -> None:
    patch(torch.Tensor, "pin_memory", lambda original: lambda self, *args, **kwargs: self)
    patch(torch.Tensor, "is_pinned", lambda original: lambda self, *args, **kwargs: True)

    def init(original: Original) -> Original:
        def built(self: object, *args: object, **kwargs: object) -> None:
            if kwargs.get("pin_memory"):
                session.note("memory is not pinned")
                kwargs["pin_memory"] = False  # the thread that pins needs a GPU
            kwargs.pop("pin_memory_device", None)
            original(self, *args, **kwargs)

        return built

    patch(torch.utils.data.DataLoader, "__init__", init)
