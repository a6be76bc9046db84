"""The line to the command: events as JSON lines over a Unix socket, one socket a process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable

from . import protocol


class Channel:
    """Sends events; after a fork the child is silent until it calls ``connect``.

    A broken line is never an error of the script: events are dropped from then on.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.socket: socket.socket | None = None
        self.lock = threading.RLock()
        self.encode = json.JSONEncoder(separators=(",", ":"), default=protocol.as_json).encode
        self.faults: dict[str, int] = {}
        self.on_line: Callable[[str], None] | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def connect(self, hello: protocol.Hello) -> None:
        """Opens the line and introduces this process. Raises OSError where nobody listens."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(self.path)
        self.emit(hello)
        threading.Thread(target=self._listen, args=(self.socket,), name="validate-ddp", daemon=True).start()

    def emit(self, event: protocol.Event) -> None:
        """Sends one event, with the time."""
        if self.socket is None:
            return
        event.time = round(time.monotonic(), 6)
        data = (self.encode(event.plain()) + "\n").encode()
        with self.lock:
            if self.socket is not None:
                try:
                    self.socket.sendall(data)
                except OSError:  # the command has gone; `_listen` sees to the end of this process
                    self.socket = None

    def fault(self, where: str, error: BaseException) -> None:
        """A fault of ours: an event, the first three times at each place, and nothing else."""
        self.faults[where] = self.faults.get(where, 0) + 1
        if self.faults[where] <= 3:
            import traceback

            text = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-3:])
            self.emit(protocol.Fault(where=where, message=f"{type(error).__name__}: {error}", traceback=text))

    def _listen(self, line: socket.socket) -> None:
        try:
            for text in line.makefile("r", encoding="utf-8"):
                if self.on_line is not None:
                    self.on_line(text.strip())
        except (OSError, ValueError):
            pass
        if self.socket is line:  # the command was killed: nothing may stay behind
            shutil.rmtree(os.path.dirname(self.path), ignore_errors=True)
            os._exit(143)

    def _forked(self) -> None:
        if self.socket is not None:
            self.socket.close()  # of the child; the parent's descriptor stays open
        self.socket = None
        self.lock = threading.RLock()
