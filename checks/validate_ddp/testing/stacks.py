"""Where a rank is: its stack, and the collective that it waits in."""

from __future__ import annotations

import faulthandler
import linecache
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from types import FrameType

from .transport import Channel, Closed

DUMP_SIGNAL = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Makes faulthandler write the stacks without the GIL; high, because tests of trainers use SIGUSR1 and SIGUSR2."""


@dataclass(frozen=True)
class Where:
    """What one rank was doing. collective: the function of torch it waits in, empty outside of one."""

    collective: str
    path: str
    line: int
    function: str
    stack: str

    def __str__(self) -> str:
        place = f"{os.path.relpath(self.path)}:{self.line}"
        if self.collective:
            return f"in {self.collective} at {place}"
        source = linecache.getline(self.path, self.line).strip()
        return f"at {place} in {self.function}" + (f": {source}" if source else "")


def where(frame: FrameType | None) -> Where:
    """Reads the stack that ends in ``frame``: the nearest line outside torch, and the call into torch that it made."""
    stack = "".join(traceback.format_list(_ours_cut(traceback.extract_stack(frame))))
    called: list[FrameType] = []
    while frame is not None and _is_torch(frame):
        called.append(frame)
        frame = frame.f_back
    if frame is None:
        return Where("", "", 0, "", stack)
    return Where(_collective(called), frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, stack)


def _collective(called: list[FrameType]) -> str:
    """The name of the outermost function of torch, if what it waits for is a peer; ``called`` is innermost first."""
    names = [frame.f_code.co_name for frame in called if frame.f_code.co_name not in _WRAPPERS]
    inner = called[0].f_code if called else None
    if inner is None or not names:
        return ""
    if "distributed" in inner.co_filename or inner.co_name == "_engine_run_backward" or "parallel" in inner.co_filename:
        return names[-1]
    return ""


_WRAPPERS = {"wrapper", "inner", "decorate_context", "_call_impl", "_wrapped_call_impl", "_fn"}


def _is_torch(frame: FrameType) -> bool:
    torch = sys.modules.get("torch")
    home = os.path.dirname(getattr(torch, "__file__", None) or "/nowhere")
    return frame.f_code.co_filename.startswith(home + os.sep)


def _ours_cut(stack: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The stack from the user's function on."""
    ours = [index for index, frame in enumerate(stack) if frame.name == "call_user" and frame.filename in _HERE]
    return stack[ours[-1] + 1 :] if ours else stack


_HERE = {os.path.join(os.path.dirname(__file__), "rank.py")}


def answer_probes(probe: Channel) -> None:
    """Starts the thread of a rank which says where the main thread is, and makes ready for it not getting the GIL."""
    main = threading.main_thread().ident

    def serve() -> None:
        while True:
            try:
                probe.receive()
                probe.send(where(sys._current_frames().get(main or 0)))
            except Closed:
                os._exit(0)  # the parent is gone, or has replaced this world

    threading.Thread(target=serve, name="validate-ddp-probe", daemon=True).start()


def open_dump() -> int:
    """A file in memory where ``DUMP_SIGNAL`` makes this process write its stacks."""
    descriptor = os.memfd_create("stacks") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
    faulthandler.register(DUMP_SIGNAL, descriptor, all_threads=False)
    return descriptor
