"""Answers the command's question where this rank is; by faulthandler too, for native code that keeps the GIL."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from . import protocol

if TYPE_CHECKING:
    from .session import Session

SIGNAL = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2


def install(session: Session) -> None:
    """Local. ``where?`` on the channel gives an event ``where``; SIGNAL appends the stacks to a file of the command."""
    main = threading.main_thread().ident or 0

    def answer(text: str) -> None:
        if text != "where?":
            return
        frames, via = session.sites.frames(sys._current_frames().get(main))
        session.emit(protocol.Where(via=via, stack=tuple(session.sites.entry(frame) for frame in frames)))

    session.channel.on_line = answer
    folder = session.options.get("dumps")
    if folder:
        descriptor = os.open(os.path.join(folder, f"{os.getpid()}.stack"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        faulthandler.register(SIGNAL, descriptor, all_threads=False)
