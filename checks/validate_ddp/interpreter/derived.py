"""What objects of the program are whose classes it derives from a library's launchers."""

from __future__ import annotations

from validate_ddp.interpreter.objects import part
from validate_ddp.interpreter.training import Accelerator, Fabric, Host
from validate_ddp.interpreter.values import Value


class DerivedAccelerator(Host, Accelerator):
    """What an object is besides whose class the program derives from ``Accelerator``."""

    __slots__ = ()
    of: Value = part()


class DerivedFabric(Host, Fabric):
    """What an object is besides whose class the program derives from ``Fabric``, or from ``LightningLite``."""

    __slots__ = ()
    of: Value = part()


class LightningLite(DerivedFabric):
    """The form that Fabric had before it was called so."""

    __slots__ = ()
