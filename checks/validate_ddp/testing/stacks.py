"""Where a rank is: its stack, and the collective that it waits in."""

from __future__ import annotations

import faulthandler
import linecache
import os
import re
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, replace
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
    innermost = frame
    frames: list[FrameType] = []
    while frame is not None and frame.f_code.co_name != "call_user":
        frames.append(frame)
        frame = frame.f_back
    found = read([(each.f_code.co_filename, each.f_lineno, each.f_code.co_name) for each in reversed(frames)])
    return replace(found, collective="wait") if innermost is not None and waits_for_work(innermost) else found


def waits_for_work(frame: FrameType) -> bool:
    """Whether a line of a user calls ``wait`` of an asynchronous collective: that is native, and has no frame."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    called = _WAIT.search(line)
    if called is None or is_torch(frame.f_code.co_filename):
        return False
    if called[1] is None:
        return _ASYNCHRONOUS.search(line) is not None
    c10d = sys.modules.get("torch.distributed")
    receiver = frame.f_locals.get(called[1], frame.f_globals.get(called[1]))
    return c10d is not None and isinstance(receiver, c10d.Work)


_WAIT = re.compile(r"(?:\b(\w+)|[)\]])\.wait\(")
_ASYNCHRONOUS = re.compile(r"\basync_op\s*=\s*True\b|\bi(?:send|recv)\(")


def read(stack: list[tuple[str, int, str]]) -> Where:
    """As ``where``, of (path, line, function), outermost first."""
    called = []
    users = [entry for entry in stack if not _is_ours(entry[0])]
    while users and is_torch(users[-1][0]):
        called.append(users.pop())
    # Torch's own lines say nothing to the reader; its function is in ``collective``.
    text = "".join(traceback.format_list([traceback.FrameSummary(*entry) for entry in users]))
    # A line of a library says less than the line of the test which called it.
    own = [entry for entry in users if not _is_library(entry[0])] or users
    path, line, function = own[-1] if own else ("", 0, "")
    return Where(_collective(called), path, line, function, text)


def from_dump(text: str) -> Where | None:
    """As ``where``, of what faulthandler has written; None if that is nothing."""
    entries = [(each[1], int(each[2]), each[3]) for each in _DUMPED.finditer(text)]
    names = [name for _, _, name in entries]
    if not entries:
        return None
    mine = entries[: names.index("call_user")] if "call_user" in names else entries
    found = read(mine[::-1])
    return replace(found, function=f"{found.function}, in native code that does not let Python run")


_DUMPED = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def place_of(error: BaseException) -> str:
    """Where an exception came from, as ``Where`` says it."""
    entries = traceback.extract_tb(error.__traceback__)
    found = read([(each.filename, each.lineno or 0, each.name) for each in entries])
    return str(found) if found.path else ""


def _collective(called: list[tuple[str, int, str]]) -> str:
    """The name of the outermost function of torch, if what it waits for is a peer; ``called`` is innermost first."""
    names = [name for _, _, name in called if name not in _WRAPPERS]
    if not names:
        return ""
    path, _, inner = called[0]
    if path.endswith(f"torch{os.sep}_ops.py"):  # the functional collectives wait in an operator
        path = next((each for each, _, _ in called if not each.endswith("_ops.py")), "")
    waits = any(part in path for part in ("distributed", "parallel", "futures"))
    return names[-1] if waits or inner == "_engine_run_backward" else ""


_WRAPPERS = {"wrapper", "inner", "decorate_context", "_call_impl", "_wrapped_call_impl", "_fn"}


def is_torch(path: str) -> bool:
    """Whether a file is one of torch's."""
    torch = sys.modules.get("torch")
    home = os.path.dirname(getattr(torch, "__file__", None) or "/nowhere")
    return path.startswith(home + os.sep)


def _is_library(path: str) -> bool:
    return path.startswith(_STANDARD) or f"{os.sep}site-packages{os.sep}" in path


_STANDARD = os.path.dirname(os.__file__) + os.sep


def _is_ours(path: str) -> bool:
    return path.startswith(_HERE)


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


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


def dump_into(descriptor: int) -> None:
    """``DUMP_SIGNAL`` makes this process write its stacks into a file from now on."""
    faulthandler.register(DUMP_SIGNAL, descriptor, all_threads=False)
