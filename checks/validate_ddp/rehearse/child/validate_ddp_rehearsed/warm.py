"""A rank's interpreter that stops before it comes to the script, imports torch, and is forked for each rank.

What is forked goes on as Python would have: site, then the script as ``__main__``, with an environment of its own.
No operator runs here: a process that has run one has threads which its children lack.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from importlib import import_module

from .patching import remember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "VALIDATE_DDP_WARM"
"""Where the command listens, and the modules to import."""
_PAUSE = 0.02
"""Seconds after which ended children are looked for."""


def serve() -> None:
    """Returns in the forked processes alone. A line of the command is an environment with the script's arguments, and
    with it may come a descriptor for what the process prints; or nothing to end all of them. Ours are ``pid N`` and
    ``ended N CODE``. At the command's end this process ends too."""
    given = json.loads(os.environ.pop(VARIABLE))
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(given["socket"])
    for name in given["modules"]:
        import_module(name)
    remember()
    gc.collect()
    gc.freeze()
    line.sendall(b"ready\n")
    data = b""
    screens: list[int] = []
    alive: set[int] = set()
    while True:
        if select.select([line], [], [], _PAUSE if alive else None)[0]:
            more, came, _, _ = socket.recv_fds(line, 1 << 16, 1)
            if not more:
                break
            data += more
            screens += came
        while b"\n" in data:
            text, _, data = data.partition(b"\n")
            if not text:
                _kill(alive)
                continue
            pid = os.fork()
            if not pid:
                line.close()
                _become(json.loads(text), screens)
                return
            while screens:
                os.close(screens.pop())
            alive.add(pid)
            line.sendall(f"pid {pid}\n".encode())
        for pid in list(alive):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                alive.discard(pid)
                line.sendall(f"ended {pid} {os.waitstatus_to_exitcode(status)}\n".encode())
    _kill(alive)
    os._exit(0)


def _become(told: dict[str, Any], screens: list[int]) -> None:
    os.setsid()
    for screen in screens:
        for standard in (1, 2):
            os.dup2(screen, standard)
        os.close(screen)
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.argv[1:] = told["arguments"]


def _kill(alive: set[int]) -> None:
    for pid in alive:
        for end in (os.killpg, os.kill):
            try:
                end(pid, signal.SIGKILL)
            except OSError:  # it has gone, or leads no group yet
                continue
