"""Process groups: nccl becomes gloo, on the loopback interface, and no call names a device."""

from __future__ import annotations

import datetime
import inspect
import os
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from ..patching import Kwargs, Original, everywhere, patch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.nn import Module

    from ..patching import Handed
    from ..session import Session


def install(session: Session) -> None:
    """Local. Patches the functions of ``torch.distributed`` that name a backend or a device, and DDP's constructor."""
    dist = session.torch.distributed
    if not dist.is_available():
        return
    stubs: dict[int, object] = {}
    makers = {
        "init_process_group": _init, "new_group": _backend, "new_subgroups": _backend, "split_group": _backend,
        "barrier": _barrier, "is_nccl_available": _yes, "is_backend_available": _yes, "init_device_mesh": _mesh,
        **dict.fromkeys(_FLAT, _flat),
    }  # fmt: skip
    for name, make in makers.items():
        original = getattr(dist, name, None)
        if original is not None:
            stub: Handed = make(original, session)
            stub.__name__ = stub.__qualname__ = name
            stub.__wrapped__ = original
            stubs[id(original)] = stub
    everywhere(stubs)
    _constructor(session)


def _gloo(backend: object, session: Session) -> object:
    if backend is not None and "nccl" in str(backend).lower():
        session.note("nccl runs as gloo")
        return "gloo"
    return backend


def _init(original: Original, session: Session) -> Original:
    def init_process_group(
        backend: object = None, init_method: object = None, *args: object, **kwargs: object
    ) -> object:
        backend = "gloo" if backend is None else _gloo(backend, session)
        if kwargs.pop("device_id", None) is not None:
            session.note("device_id is left out of init_process_group")
        kwargs.pop("pg_options", None)
        _patient(session, kwargs)
        host, ports = os.environ.get("VALIDATE_DDP_HOST"), os.environ.get("VALIDATE_DDP_PORTS", "").split()
        if host and ports:
            if init_method is not None and str(init_method).startswith("tcp://"):
                session.note("the rendezvous is on the loopback interface")
                init_method = f"tcp://{host}:{_here(str(init_method), ports)}"
            if os.environ.get("MASTER_ADDR") or init_method in (None, "env://"):
                _pin(session, host, ports[0])
        return original(backend, init_method, *args, **kwargs)

    return init_process_group


def _here(address: str, ports: list[str]) -> str:
    """The port of this machine that stands for an address: on every rank the same, for the next address another."""
    port = urlparse(address).port
    if port is None or str(port) == ports[0]:  # the launcher's, from the environment
        return ports[0]
    return ports[1 + port % (len(ports) - 1)]


def _patient(session: Session, kwargs: Kwargs) -> None:
    """A slow machine must not run into a time-out made for GPUs; who waits in vain is found by the command."""
    longest = datetime.timedelta(seconds=2 * float(session.options.get("timeout") or 600))
    given = kwargs.get("timeout")
    if isinstance(given, datetime.timedelta) and given < longest:
        session.note("time-outs of process groups are lengthened: --hang and --timeout stand for them")
        kwargs["timeout"] = longest


def _pin(session: Session, host: str, port: str) -> None:
    if os.environ.get("MASTER_ADDR") is not None and os.environ.get("MASTER_PORT") is not None:
        if (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) != (host, port):
            session.note("the rendezvous is on the loopback interface")
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, port


def _backend(original: Original, session: Session) -> Original:
    def group(*args: object, **kwargs: object) -> object:
        if "backend" in kwargs:
            kwargs["backend"] = _gloo(kwargs["backend"], session)
        kwargs.pop("device_id", None)
        kwargs.pop("pg_options", None)
        _patient(session, kwargs)
        args = tuple(_gloo(each, session) if isinstance(each, str) else each for each in args)
        return original(*args, **kwargs)

    return group


def _barrier(original: Original, session: Session) -> Original:
    def barrier(
        group: ProcessGroup | None = None, async_op: bool = False, device_ids: list[int] | None = None
    ) -> object:
        for index in device_ids or ():
            session.devices.use(index, "barrier")
        return original(group, async_op)

    return barrier


_FLAT = (
    "all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single",
    "_all_gather_base", "_reduce_scatter_base",
)  # fmt: skip


def _flat(original: Original, session: Session) -> Original:
    """nccl asks for the number of elements alone; gloo wants the output's shape to be that of the parts, too."""
    names = list(inspect.signature(inspect.unwrap(original)).parameters)[:2]

    def collective(*args: object, **kwargs: object) -> object:
        named = dict(zip(names, args, strict=False))
        tensors: list[Tensor] = [named.get(name, kwargs.get(name)) for name in names]
        if all(isinstance(each, session.torch.Tensor) and each.is_contiguous() for each in tensors):
            rest = {key: value for key, value in kwargs.items() if key not in names}
            return original(*(each.view(-1) for each in tensors), *args[2:], **rest)
        return original(*args, **kwargs)

    return collective


def _yes(original: Original, session: Session) -> Original:
    def available(*args: object, **kwargs: object) -> bool:
        asked = str((*args, *kwargs.values(), "nccl")[0]).lower() == "nccl"
        # Torch's own code goes on to names that only a build with NCCL has.
        return (asked and not session.sites.called_by_torch()) or bool(original(*args, **kwargs))

    return available


def _mesh(original: Original, session: Session) -> Original:
    def init_device_mesh(device_type: str, *args: object, **kwargs: object) -> object:
        if device_type == "cuda":
            session.note("device meshes of CUDA are meshes of the CPU")
        return original("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return init_device_mesh


def _constructor(session: Session) -> None:
    ddp = session.torch.nn.parallel.DistributedDataParallel
    original = ddp.__init__

    def init(
        self: object, module: Module, device_ids: list[int] | None = None, output_device: object = None,
        *args: object, **kwargs: object
    ) -> None:  # fmt: skip
        for each in device_ids or ():
            index = session.devices.index_of(each)
            if index is not None:
                session.note("device_ids are left out of DistributedDataParallel")
                session.devices.use(index, "device_ids")
        original(self, module, None, None, *args, **kwargs)

    init.__wrapped__ = original  # type: ignore[attr-defined]
    ddp.__init__ = init
    # It refuses SyncBatchNorm on the CPU, where the shim computes it.
    patch(ddp, "_passing_sync_batchnorm_handle", lambda original: lambda self, module: None)
