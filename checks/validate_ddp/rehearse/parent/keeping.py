"""The command's side of the process that keeps the ranks: a folder and processes, which vanish when it is left.

``Keeper`` is a context. Leaving it, whatever the reason, ends all processes and removes the folder; a command that is
killed leaves it too, as the kernel closes the line to ``keeper.py``, which tells why it is made so.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator

from validate_ddp import descendants
from validate_ddp.console import UsageError
from validate_ddp.rehearse.parent.ending import keepers
from validate_ddp.rehearse.parent.keeper import ENDED, GRACE, MARK, NOW, PATIENT, READY, STARTED, request

_LONGEST = 75
"""Bytes of a folder in which our own folder and the socket in it still fit: the kernel takes a path of 107."""
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(descendants.__file__)))
_CODE = "import sys; sys.path.append(sys.argv.pop(1)); from validate_ddp.rehearse.parent import keeper; keeper.main"
_WAIT = GRACE + descendants.LIMIT + 5
"""Seconds for the keeper to end what it keeps."""

_adopted_before = False
"""Whether this process was a sub-reaper before it kept anything."""


class Keeper:
    """Starts ranks and a folder that do not outlive this process. ``run``: the mark in the ranks' environment.

    Raises UsageError where no folder can be written.
    """

    def __init__(self) -> None:
        global _adopted_before
        self.run = uuid.uuid4().hex
        self.folder = os.path.join(_short_folder(), f"validate-ddp-{self.run[:12]}")
        self.codes: dict[int, int] = {}
        self.pids: list[int] = []
        self.lost = False
        """Whether the keeper was killed, so that the ranks are this process's children."""
        self.made = self.closed = False
        self.answers = b""
        # Sockets, which close themselves where an interrupt comes before all is set up; numbers would not.
        self.control, control = socket.socketpair()
        self.line, line = socket.socketpair()
        with control, line:
            self.process = self._started(control.fileno(), line.fileno())
        if not keepers:
            _adopted_before = descendants.adopt()
        keepers.append(self)  # now that nobody else holds the keeper's ends: their closing is what is waited for
        try:
            word, rest = self._answer()
        except BaseException:
            self.close()
            raise
        if word != READY:
            self.close()
            raise UsageError(f"no folder for temporary files can be written: {rest}")
        self.made = True

    def _started(self, *descriptors: int) -> subprocess.Popen[bytes]:
        flags = ["-I", "-S", *(["-B"] if sys.dont_write_bytecode else [])]
        words = [*map(str, descriptors), self.folder, self.run, str(GRACE)]
        try:
            return subprocess.Popen(
                [sys.executable, *flags, "-c", f"{_CODE}(sys.argv[1:])", _ROOT, *words],
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"no process can be started: {error.strerror or error}") from error

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.close()
        except BaseException:  # a second Ctrl-C: the end of the line says it too, and nobody waits
            self.line.close()
            raise

    def start(self, words: list[str], environment: dict[str, str], screen: int | None) -> int:
        """Starts a process in a session of its own, with ``screen`` as its output or with ours; its process id."""
        data = request(words, environment)
        try:
            sent = socket.send_fds(self.control, [data], [] if screen is None else [screen])
            self.control.sendall(data[sent:])
        except OSError:
            pass  # it has gone, as the missing answer tells
        word, rest = self._answer()
        if word != STARTED:
            raise UsageError(f"no process can be started: {rest}")
        self.pids.append(int(rest))
        return self.pids[-1]

    def _answer(self) -> tuple[str, str]:
        """The next answer that is not about a process that has ended: its first word, and the rest."""
        while True:
            for word, rest in self._lines():
                if word != ENDED:
                    return word, rest
            if not self._more(block=True):
                return "", "the process that keeps the ranks was killed"

    def _lines(self) -> Iterator[tuple[str, str]]:
        """The answers that have come. Those about processes that have ended are taken in."""
        while b"\n" in self.answers:
            line, _, self.answers = self.answers.partition(b"\n")
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == ENDED:
                pid, code = rest.split()
                self.codes[int(pid)] = int(code)
            yield word, rest

    def _more(self, block: bool) -> bool:
        """Reads what the keeper has said; whether it can say more."""
        try:
            data = self.control.recv(1 << 16, 0 if block else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self.answers += data
        self.lost = self.lost or not data
        return bool(data)

    def poll(self) -> dict[int, int]:
        """The exit codes of processes that have ended, negative for a signal."""
        if not self.lost:
            self._more(block=False)
            list(self._lines())
        if self.lost:
            self._poll_children()
        return self.codes

    def _poll_children(self) -> None:
        for pid in self.pids:
            if pid not in self.codes:
                try:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:  # off Linux, where nobody is told any more how it ends
                    raise UsageError("the process that keeps the ranks was killed") from None
                if ended:
                    self.codes[pid] = os.waitstatus_to_exitcode(status)

    def ask(self, patiently: bool) -> None:
        """Asks that all be ended, and does not wait. Once more: now. May be called from the handler of a signal."""
        try:
            self.line.send(PATIENT if patiently else NOW, socket.MSG_DONTWAIT)
        except OSError:
            return

    def close(self, patiently: bool = False) -> None:
        """Ends all processes and removes the folder. patiently: with SIGTERM first, and ``GRACE`` seconds."""
        if self.closed:
            return
        self.ask(patiently)
        self.wait()
        self.closed = True
        self.control.close()
        self.line.close()
        self.process.wait()
        keepers.remove(self)
        if not keepers:
            descendants.adopt(_adopted_before)

    def wait(self) -> None:
        """Waits until the keeper has ended everything; does it here where it was killed."""
        deadline = time.monotonic() + _WAIT
        while not self.lost and time.monotonic() < deadline:
            if select.select([self.control], [], [], 0.1)[0]:
                self._more(block=False)
        list(self._lines())
        if self.made and os.path.exists(self.folder):
            self._end_here()

    def _end_here(self) -> None:
        left = [pid for pid in self.pids if pid not in self.codes]
        descendants.end_trees(left)
        for pid in descendants.marked(f"{MARK}={self.run}"):
            descendants.kill(pid)
        for pid in left:
            try:
                self.codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            except ChildProcessError:
                continue
        shutil.rmtree(self.folder, ignore_errors=True)


def _short_folder() -> str:
    """The folder for temporary files; /tmp where its path is too long to hold a socket."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _LONGEST else "/tmp"
