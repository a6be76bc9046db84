"""Functions that make tensors, with ``device=``: a GPU becomes the CPU; generators and device contexts likewise."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..patching import Handed, Original, patch

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session
    from .devices import Devices

_FUNCTIONS = (
    "arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_strided eye from_file full "
    "full_like hamming_window hann_window kaiser_window linspace logspace normal ones ones_like rand rand_like randint "
    "randint_like randn randn_like randperm range scalar_tensor sparse_coo_tensor tensor tril_indices triu_indices "
    "zeros zeros_like"
).split()
_METHODS = "new_empty new_empty_strided new_full new_ones new_tensor new_zeros".split()


def install(session: Session) -> None:
    """Local. Patches the factories, ``Generator``, ``set_default_device`` and ``with torch.device(...)``."""
    torch, devices = session.torch, session.devices
    # 2.13 imports the module with the first context; to import it here costs a millisecond.
    __import__("torch.utils._device")
    # Torch lists the functions that a context is for when it first needs them, and knows them by identity: it has to
    # list its own, not ours, or `with torch.device("meta")` would do nothing.
    sys.modules["torch.utils._device"]._device_constructors()
    for name in _FUNCTIONS:
        patch(torch, name, lambda original: _factory(original, devices))
    for name in _METHODS:
        patch(torch.Tensor, name, lambda original: _factory(original, devices))
    vars(torch)["Generator"] = _generator(torch.Generator, devices)
    _contexts(torch, devices)


def _factory(original: Original, devices: Devices) -> Original:
    def make(*args: object, **kwargs: object) -> object:
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs["device"] = devices.mapped(kwargs["device"], "device=")
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False  # as safetensors asks for, where there is a GPU
        return original(*args, **kwargs)

    return make


def _generator(real: type, devices: Devices) -> type:
    class Meta(type):
        def __instancecheck__(cls, thing: object) -> bool:
            return isinstance(thing, real)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, real)

    class Generator(metaclass=Meta):
        """``torch.Generator`` whose device is never a GPU."""

        __wrapped__ = real

        def __new__(cls, device: object = "cpu") -> Handed:
            return real(devices.mapped(device, "Generator"))

    return Generator


def _contexts(torch: ModuleType, devices: Devices) -> None:
    def context(original: Original) -> Original:
        def init(self: object, device: object) -> None:
            original(self, devices.mapped(device, "with torch.device"))

        return init

    def when_imported(original: Original) -> Original:
        def set_default(device: object) -> None:
            original(None if device is None else devices.mapped(device, "set_default_device"))

        return set_default

    patch(torch, "set_default_device", when_imported)
    patch(sys.modules["torch.utils._device"].DeviceContext, "__init__", context)
