"""Ranks that are forked from one process with torch in it, for runs that start the same script many times."""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from validate_ddp.rehearse.parent import environment
from validate_ddp.rehearse.parent.keeping import Keeper
from validate_ddp.rehearse.plan import Plan

_MODULES = ["torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch._dynamo"]
"""The last one is imported by the first optimizer of each rank."""
SHARDED = ["torch.distributed.fsdp", "torch.distributed.tensor.parallel"]
_START = 120.0
"""Seconds for these imports, on a cold disk."""


def forks(plan: Plan) -> bool:
    """Whether ranks can be forked with torch in them: where we start them, all with one command line."""
    if plan.launcher == "single" or not sys.platform.startswith("linux"):
        return False
    return environment.command(plan, 0) == environment.command(plan, 1)


def forked(plan: Plan, keeper: Keeper, more: Sequence[str] = (), silent: bool = True) -> Callable[[], Keeper]:
    """Makes the keeper of a run: its ranks are forked with torch, and ``more``, in them, where they can be. silent:
    nothing is seen of what they print."""
    if not forks(plan):
        return Keeper
    try:
        return Warm(plan, keeper, list(more), silent).run
    except OSError:
        return Keeper


class Warm:
    """The process that is forked, within ``keeper``. ``run()`` is a keeper of one run's ranks."""

    def __init__(self, plan: Plan, keeper: Keeper, more: list[str], silent: bool = True) -> None:
        self.keeper = keeper
        self.runs = 0
        self.answers = b""
        self.codes: dict[int, int] = {}
        self.before = len(environment.command(plan, None)) - len(plan.arguments)
        """Words of a command line before the script's arguments."""
        path = os.path.join(keeper.folder, "warm")
        given = json.dumps({"socket": path, "modules": _MODULES + more})
        own = {"VALIDATE_DDP_WARM": given, "TMPDIR": keeper.folder}  # the last module makes a folder in it
        shared = {**environment.base(plan, keeper.folder, keeper.run, []), **own}
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listening:
            listening.bind(path)
            listening.listen(1)
            listening.settimeout(_START)
            screen = os.open(os.devnull, os.O_WRONLY) if silent else None
            try:
                keeper.start(environment.command(plan, None), shared, screen)
            finally:
                if screen is not None:
                    os.close(screen)
            self.line = listening.accept()[0]
        self.line.settimeout(_START)
        if self.answer() != ["ready"]:
            raise OSError("the process that ranks are forked from has ended")
        self.line.settimeout(None)

    def run(self) -> Forked:
        """A keeper of the next run."""
        self.runs += 1
        folder = os.path.join(self.keeper.folder, str(self.runs))
        os.mkdir(folder, 0o700)
        return Forked(self, folder)

    def answer(self) -> list[str]:
        """The next answer that is not about a process that has ended. Raises OSError where there is none."""
        while True:
            while b"\n" in self.answers:
                text, _, self.answers = self.answers.partition(b"\n")
                words = text.decode().split()
                if words[0] != "ended":
                    return words
                self.codes[int(words[1])] = int(words[2])
            data = self.line.recv(1 << 16)
            if not data:
                raise OSError("the process that ranks are forked from has ended")
            self.answers += data

    def poll(self) -> None:
        """Takes in what has been said of processes that have ended."""
        while select.select([self.line], [], [], 0)[0]:
            data = self.line.recv(1 << 16)
            if not data:
                break
            self.answers += data
        while b"\n" in self.answers:
            text, _, self.answers = self.answers.partition(b"\n")
            words = text.decode().split()
            self.codes[int(words[1])] = int(words[2])


class Forked(Keeper):
    """Keeps the ranks of one run; see ``Keeper``."""

    def __init__(self, warm: Warm, folder: str) -> None:
        self.warm, self.folder, self.run = warm, folder, warm.keeper.run
        self.codes: dict[int, int] = {}
        self.pids: list[int] = []

    def start(self, words: list[str], environment: dict[str, str], screen: int | None) -> int:
        """Forks a process that goes on to the script; of ``words`` with the script's arguments."""
        told = json.dumps({"environment": environment, "arguments": words[self.warm.before :]})
        data = told.encode() + b"\n"
        sent = socket.send_fds(self.warm.line, [data], [] if screen is None else [screen])
        self.warm.line.sendall(data[sent:])
        self.pids.append(int(self.warm.answer()[1]))
        return self.pids[-1]

    def ask(self, patiently: bool) -> None:
        """Has the processes of this run end, and does not wait. Raises OSError where nobody hears it any more."""
        self.warm.line.sendall(b"\n")

    def poll(self) -> dict[int, int]:
        """The exit codes of processes that have ended, negative for a signal."""
        self.warm.poll()
        self.codes.update((pid, self.warm.codes[pid]) for pid in self.pids if pid in self.warm.codes)
        return self.codes

    def close(self, patiently: bool = False) -> None:
        """Ends the processes of this run."""
        deadline = time.monotonic() + 5
        self.ask(patiently)
        while any(pid not in self.codes for pid in self.pids) and time.monotonic() < deadline:
            select.select([self.warm.line], [], [], 0.1)
            self.poll()
