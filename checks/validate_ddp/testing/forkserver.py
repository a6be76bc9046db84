"""The process that ranks are forked from: it imports torch once and never runs an operator.

A process that has run an autograd or OpenMP operator has threads which its children lack, and they hang on the first
such operator; so nothing of the user is imported here. ``torch._dynamo`` is: the first optimizer
of each rank would import it (1.1 s of CPU a rank, for a suite of two ranks 3 s more in all than once here).

Whatever ends the parent, its channel closes, and this process ends the ranks with all that descends from them. It is
the sub-reaper of that (``validate_ddp.descendants``), so that no session and no environment hides a daemon.

The parent's messages: ("spawn", world, rank, size) with the rank's six descriptors, ("kill", world), ("close", grace).
Ours: ("broken", text), ("store", port) when ready, ("spawned", world, rank, pid), ("died", pid, exit code), and
("lost", text) before it ends by itself.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from validate_ddp import descendants

from .transport import Channel, Closed, from_descriptor, wait_readable

REAP_AFTER = 0.3
"""Seconds between a rank's end and the end of what it has started: multiprocessing's tracker frees /dev/shm in them."""


def main(descriptor: int, folder: str) -> None:
    """Serves the parent until it says so or is gone. The first message: (``sys.path``, pytest's options or None).

    folder: of the parent, removed in the end; empty where it has none.
    """
    descendants.adopt()
    parent = from_descriptor(descriptor)
    path, pytest_options = parent.receive()
    sys.path[:] = path
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: ranks share the cores
    # The interface of the machine's host name may be down, or slow to look up; these ranks meet on this machine only.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    try:
        import torch.distributed as dist

        if not dist.is_available():
            raise ImportError("this torch was built without torch.distributed")
        import torch._dynamo
        import torch.nn.parallel
        import torch.utils.data  # noqa: F401

        if pytest_options is not None:
            from .rank_pytest import prepare

            prepare(pytest_options)
    except BaseException:  # noqa: BLE001 - told to the parent, which raises it
        parent.send(("broken", traceback.format_exc()))
        return
    settle()
    Server(parent, folder).serve()


class Server:
    """Forks on request, and knows every process it has forked."""

    def __init__(self, parent: Channel, folder: str) -> None:
        self.parent = parent
        self.folder = folder
        self.alive: set[int] = set()
        self.worlds: dict[int, list[int]] = {}
        self.ended: dict[int, float] = {}
        """Not reaped yet: while its leader is a zombie, the number of a process group cannot be taken by another."""
        self.close_at: float | None = None
        # SIGCHLD wakes the poll below through this pair.
        ours, theirs = socket.socketpair()
        self.wakeup = Channel(ours)
        self.wakeup_writer = theirs
        theirs.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the parent decides, or its death does
        self.port = self.start_store()

    def serve(self) -> NoReturn:
        """Serves until the end, whatever brings it: nothing that was forked is left."""
        try:
            self.parent.send(("store", self.port))
            while True:
                self.serve_once()
        except Closed:
            pass  # the parent is gone
        except BaseException:  # noqa: BLE001 - told, and then the same
            traceback.print_exc()
        self.end()

    def serve_once(self) -> None:
        """Waits for something and deals with it."""
        timeout = None
        if self.ended:
            timeout = max(0.0, min(self.ended.values()) - time.monotonic())
        if self.close_at is not None:
            timeout = min(0.05 if timeout is None else timeout, 0.05)
        ready = wait_readable([self.parent, self.wakeup], timeout)
        if self.wakeup in ready:
            self.wakeup.socket.recv(4096)
        self.reap()
        self.reap_orphans()
        if self.parent in ready:
            self.parent.pump()
            while self.parent.has_message():
                self.obey(self.parent.pop())
        elif self.close_at is not None:
            if not self.alive or time.monotonic() > self.close_at:
                self.end()

    def obey(self, message: tuple[Any, ...]) -> None:
        """Carries out one message."""
        if message[0] == "spawn":
            _, world, rank, size = message
            descriptors = self.parent.descriptors(6)
            pid = self.fork_rank(world, rank, size, descriptors)
            self.worlds.setdefault(world, []).append(pid)
            for descriptor in descriptors:
                os.close(descriptor)
            self.parent.send(("spawned", world, rank, pid))
        elif message[0] == "kill":
            for pid in self.worlds.pop(message[1], []):
                if pid in self.alive:
                    os.kill(pid, signal.SIGKILL)
        elif message[0] == "close":
            self.close_at = time.monotonic() + message[1]

    def fork(self) -> int:
        """Forks; the child leads a process group of its own, has default signals, and dies with this process."""
        this = os.getpid()
        pid = os.fork()
        if pid:
            try:
                os.setpgid(pid, pid)  # here too: a kill must not come before the child has done it
            except OSError:
                pass
            return pid
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.wakeup_writer.close()
        os.setpgid(0, 0)
        die_with_parent(this)
        return 0

    def fork_rank(self, world: int, rank: int, size: int, descriptors: list[int]) -> int:
        """Forks one rank, which never returns from here."""
        pid = self.fork()
        if pid:
            self.alive.add(pid)
            return pid
        try:
            from .capture import Files
            from .rank import Rank

            jobs, probe = (from_descriptor(descriptor) for descriptor in descriptors[:2])
            Rank(rank, size, self.port, jobs, probe, Files(*descriptors[2:])).serve(f"world{world}")
        except BaseException:  # noqa: BLE001 - nothing may run on in a copy of this process
            traceback.print_exc()
        os._exit(70)

    def start_store(self) -> int:
        """Forks the process with the store: its threads must not be here, where ranks are forked. Returns its port."""
        reader, writer = os.pipe()
        pid = self.fork()
        if pid == 0:
            import torch.distributed as dist

            listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
            port = listener.getsockname()[1]
            # On a socket of ours: torch's own listens on every interface, and asks nobody for a password.
            options = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.fileno()}
            make = functools.partial(dist.TCPStore, "127.0.0.1", port, **options)
            stderr = os.dup(2)
            with open(os.devnull, "w") as silence:
                os.dup2(silence.fileno(), 2)  # torch 2.4 prints what it then raises
            try:
                store = make()
            except NotImplementedError:  # its libuv server does not take a socket, the older one does
                store = make(use_libuv=False)
            os.dup2(stderr, 2)
            listener.detach()
            os.write(writer, str(store.port).encode())
            os.close(writer)
            while True:
                signal.pause()
        os.close(writer)
        told = os.read(reader, 16)
        os.close(reader)
        self.store = pid
        return int(told)

    def reap(self) -> None:
        """Tells of ranks that have ended, and a moment later ends what they have started."""
        now = time.monotonic()
        for pid in list(self.alive):
            info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is None:
                continue
            self.alive.discard(pid)
            self.ended[pid] = now + REAP_AFTER
            signal_group(pid, signal.SIGTERM)
            code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            self.parent.send(("died", pid, code))
        for pid, deadline in list(self.ended.items()):
            if now >= deadline:
                self.bury(pid)

    def reap_orphans(self) -> None:
        """Takes leave of what ranks had started that has outlived them, while no rank lies unburied before it."""
        while not self.ended:
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is None or info.si_pid in self.alive:
                return
            if info.si_pid == self.store:  # no rank can meet another any more: the parent starts a forkserver anew
                self.parent.send(("lost", "the process with the store of the process groups was killed"))
                raise Closed
            os.waitpid(info.si_pid, 0)

    def bury(self, pid: int) -> None:
        """Kills what is left of a rank's process group, and lets go of its number."""
        signal_group(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self.ended[pid]

    def end(self) -> NoReturn:
        """Kills all that descends from this process, and ends."""
        seen = descendants.end_children([*self.alive, *self.ended, self.store], lambda pid, code: None)
        descendants.forget_shared_memory(seen)
        if self.folder:  # the parent removes it too, if it can
            shutil.rmtree(self.folder, ignore_errors=True)
        # Not sys.exit: to tear down an interpreter that holds all of torch takes a second.
        os._exit(0)


def signal_group(pid: int, number: int) -> None:
    """A signal for a rank and all that it has started."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def settle() -> None:
    """Before forks: what is alive now is not looked at by the ranks' collections (50 ms each), and stays shared."""
    gc.collect()
    gc.freeze()


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when the one that forked it ends, however it ends. Linux only."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(70)


def start(descriptor: int, folder: str) -> None:
    """The entry of the process; see ``server.Server``."""
    assert threading.active_count() == 1
    try:
        main(descriptor, folder)
    except Closed:  # the parent was killed before it had said anything
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    os._exit(0)
