"""The process between the command and the ranks: it starts them, and ends them with all that they have started.

Whatever ends the command, a SIGKILL too, something has to be left that ends the ranks; and only a parent can know all
that descends from them. So this small process (no torch, some 20 ms to start) is the parent of the ranks and the
sub-reaper of their descendants: a loader's worker whose rank was killed, a daemon in a session of its own with a
cleared environment, ranks that a rank has spawned, all are its children as soon as they have no other parent.

- The command asks it to start ranks, and is told when they end.
- It ends everything and removes the folder of the run when it is asked to, and when the command's end of the line
  closes: the kernel does that, however the command ended.
- It leads a session of its own, so that Ctrl-C on the terminal comes to the command alone, and lets SIGINT, SIGTERM
  and SIGHUP pass: where all processes of a session get them, the command decides.
- Where it is killed itself, the command goes on: as a sub-reaper above this one it becomes the ranks' parent. What
  cleared its environment in a session of its own is out of sight then, and so are all if both are killed at once;
  ranks with torch in them end in that case too, as their channel closes.
- A process that another daemon has started for a rank (tmux, a container) descends from that one, and is found by the
  mark in its environment, if it was given it.

PR_SET_PDEATHSIG, which would have the kernel kill the ranks with their parent, is not used: it does not reach what they
have started, and would end a run whose keeper alone is killed.

Off Linux there are no sub-reapers: the process groups of the ranks are ended there.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time

from validate_ddp import descendants

TYPE_CHECKING = False  # as `typing` has it; json, re and typing would double the time to start
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

PATIENT, NOW = b"T", b"K"
"""What the command says on the line besides closing it: SIGTERM first and a moment's grace, or SIGKILL at once."""
GRACE = 2.0
"""Seconds between the two signals, where the command says nothing else."""
MARK = "VALIDATE_DDP_RUN"
READY, STARTED, ENDED, FAILED = "ready", "started", "ended", "failed"
"""The first words of answers, one a line; a process id, an exit code or a reason follows."""
_HEAD = struct.Struct("!II")


def request(words: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """What the command writes to have a process started: two lengths, then command line and environment."""
    parts = [*words, *(f"{name}={value}" for name, value in environment.items())]
    data = b"\0".join(map(os.fsencode, parts))
    return _HEAD.pack(len(data), len(words)) + data


class Service:
    """control: requests come and answers go. line: one byte, or its end, ends everything. grace: seconds."""

    def __init__(self, control: socket.socket, line: socket.socket, folder: str, run: str, grace: float) -> None:
        self.control, self.line, self.folder, self.run, self.grace = control, line, folder, run, grace
        self.ranks: set[int] = set()
        self.started: set[int] = set()
        self.gone: set[int] = set()
        self.request = b""
        self.screens: list[int] = []
        # SIGCHLD wakes `select` through this pair.
        self.wakeup, writer = socket.socketpair()
        self.wakeup.setblocking(False)
        writer.setblocking(False)
        self.writer = writer
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def serve(self) -> NoReturn:
        """Until the line says so, or ends."""
        asked = NOW
        while True:
            ready = select.select([self.control, self.line, self.wakeup], [], [])[0]
            if self.wakeup in ready:
                self.wakeup.recv(4096)
                descendants.reap(self._reaped)
            if self.line in ready:
                asked = self.line.recv(1) or NOW
                break
            if self.control in ready and not self._take():
                break
        self._end(asked)

    def _take(self) -> bool:
        """A part of a request: its length, then the command line and the environment; a screen may come with it."""
        data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 1)
        self.screens += descriptors
        self.request += data
        if len(self.request) >= _HEAD.size:
            length, count = _HEAD.unpack(self.request[: _HEAD.size])
            end = _HEAD.size + length
            if len(self.request) >= end:
                parts = self.request[_HEAD.size : end].split(b"\0")
                self.request = self.request[end:]
                pairs = (part.partition(b"=") for part in parts[count:])
                self._start(parts[:count], {name: value for name, _, value in pairs})
        return bool(data)

    def _start(self, words: list[bytes], environment: dict[bytes, bytes]) -> None:
        screens, self.screens = self.screens, []
        reader, writer = os.pipe()
        try:
            pid = os.fork()
            if pid == 0:
                _become(words, environment, screens, writer)
            self.ranks.add(pid)
            self.started.add(pid)
        except OSError as error:
            os.write(writer, (error.strerror or str(error)).encode())
        for descriptor in (*screens, writer):
            os.close(descriptor)
        # At its end once the rank has become another program: a signal before would not reach its session.
        failed = os.read(reader, 4096)
        os.close(reader)
        if failed:
            self._tell(FAILED, failed.decode(errors="replace"))
        else:
            self._tell(STARTED, pid)

    def _reaped(self, pid: int, code: int) -> None:
        self.gone.add(pid)
        if pid in self.ranks:
            self.ranks.discard(pid)
            self._tell(ENDED, pid, code)

    def _tell(self, *words: object) -> None:
        try:
            self.control.sendall(" ".join(map(str, words)).replace("\n", " ").encode() + b"\n")
        except OSError:  # the command has gone; the line says so too
            return

    def _end(self, asked: bytes) -> NoReturn:
        """Ends everything, and this process."""
        deadline = time.monotonic() + self.grace
        before = descendants.of([os.getpid()])  # some end by themselves, as their ranks do
        held = descendants.semaphores_of(before)
        if asked == PATIENT:
            descendants.kill_groups(self.ranks, signal.SIGTERM)
            while self.ranks and time.monotonic() < deadline:
                if select.select([self.line], [], [], 0.01)[0]:
                    break  # asked again, or the command was killed meanwhile
                descendants.reap(self._reaped)
        seen = descendants.end_children(self.started, self._reaped, held)
        for pid in descendants.marked(f"{MARK}={self.run}"):
            descendants.kill(pid)
            seen.add(pid)
        descendants.forget_shared_memory(seen | before | self.gone)
        _remove(self.folder)
        os._exit(0)


def _become(words: list[bytes], environment: dict[bytes, bytes], screens: list[int], failed: int) -> NoReturn:
    """The rest of a forked process: a rank. failed: where it is said why it cannot become one."""
    try:
        os.setsid()
        for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them for itself; handlers end with the `exec`
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        for descriptor in screens:
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
        os.execve(words[0], words, environment)
    except BaseException as error:  # noqa: BLE001 - nothing may run on in a copy of this process
        why = getattr(error, "strerror", None) or str(error)
        os.write(failed, words[0] + f": {why}".encode(errors="replace"))
    os._exit(127)


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> NoReturn:
    """arguments: the descriptors of both sockets, the folder to be made, the number of the run, seconds of grace."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD"):
        number = getattr(signal, name)
        if signal.getsignal(number) is not signal.SIG_IGN or name == "SIGCHLD":
            # A function and not SIG_IGN, which the ranks would inherit.
            signal.signal(number, lambda number, frame: None)
    sockets = [socket.socket(fileno=int(each)) for each in arguments[:2]]
    for each in sockets:
        os.set_inheritable(each.fileno(), False)
    folder, run, grace = arguments[2:]
    service = Service(sockets[0], sockets[1], folder, run, float(grace))
    descendants.adopt()
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        service._tell(FAILED, error.strerror or error)
        os._exit(1)
    service._tell(READY)
    import shutil  # noqa: F401 - now, while nobody waits for it; and it may be gone with the disk in the end

    service.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
