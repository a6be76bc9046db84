"""CUDA streams, events and device contexts: objects that order nothing, since the CPU does one thing at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..session import Session


class Stream:
    """In place of ``torch.cuda.Stream``."""

    cuda_stream = 0
    priority = 0

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def wait_stream(self, stream: object) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record()
        return event


class Event:
    """In place of ``torch.cuda.Event``: keeps the time at which it was recorded."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.time = 0.0

    def record(self, stream: object = None) -> None:
        self.time = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        return float(end.time - self.time) * 1e3


class Context:
    """In place of ``torch.cuda.device`` and ``torch.cuda.stream``."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *args: object) -> None:
        pass


def install(session: Session) -> None:
    """Local."""
    cuda = session.torch.cuda
    stream = Stream()
    for name, stub in (("Stream", Stream), ("ExternalStream", Stream), ("Event", Event)):
        setattr(cuda, name, stub)
    for name in ("stream", "StreamContext", "device", "device_of"):
        setattr(cuda, name, type(name, (Context,), {"__doc__": Context.__doc__}))
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, lambda device=None: stream)
    cuda.set_stream = lambda stream: None
    session.torch.Tensor.record_stream = lambda self, stream: None
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        nvtx = getattr(cuda, "nvtx", None)
        if nvtx is not None and hasattr(nvtx, name):
            setattr(nvtx, name, lambda *args, **kwargs: None)
