"""When one rank fails, all leave at once, and the first thing printed is what went wrong on that rank.

A failing rank claims to be the first in the group's store, prints its traceback and writes the abort key; a thread on
each rank reads that, and ends the process. A death is seen by its connection (`Lifelines`). No collective here.
"""

from __future__ import annotations

import os
import queue
import re
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from .core.collectives import sum_count
from .launch import World
from .monitor.heartbeat import last_words

POLL = 0.5  # Seconds between looks at the abort key; a death is seen at once.
HOLD_BACK = 2.0  # Seconds for which an error of the connection waits for the failure that caused it.
LAST_WORDS = 1.5  # Seconds that a rank which is not the first to fail gives to the first to finish printing.
LINGER = 3.0  # Seconds for which rank zero, in whose process the store may be, stays for others to read it.
LEAVE = 4.5  # Seconds after which a failing rank is ended by its watcher, whatever it is waiting for.
UNWINDING = 0.3  # Seconds for which a rank that is to leave waits for its main thread to tell an error of its own.
_LOST = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|socket (closed|timeout)|remote process exited"
    r"|no ?route to host|network (error|is unreachable)|failed to recv|recvvalue|sendbytes|peer .*closed",
    re.IGNORECASE,
)
"""How backends and the store say that a peer has gone."""
_LIBRARY = re.compile(r"^<|[/\\](site-packages|dist-packages|lib[/\\]python3[^/\\]*)[/\\]")


class Watch:
    """Context manager on every rank, around everything that may fail. Entering and leaving it is collective.

    brief: errors told in one line, each with its exit code. Where there are several ranks no exception comes out of it:
    the process ends, for what would run afterwards may wait for peers.
    """

    def __init__(self, world: World, *, brief: Mapping[type[Exception], int] | None = None) -> None:
        self.world, self.brief = world, dict(brief or {})
        # torchrun's agent has the store; elsewhere it may be in rank zero's process.
        self._store_outlives_rank_zero = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        self._leaving = threading.Lock()
        self._failing_since: float | None = None
        self._failing, self._ended = threading.Event(), threading.Event()
        self._known: queue.Queue[str] = queue.Queue()  # Why the job is to end, from the thread to the main one.

    def __enter__(self) -> Watch:
        if self.world.group is not None:
            store, key, host = _own_store(self.world)
            self._store, self._key = store, key
            self._main = threading.get_ident()
            self._lines = Lifelines(
                self.world.rank,
                self.world.size,
                token=store.get(f"{key}/token"),
                host=host,
                publish=lambda port: store.set(f"{key}/port", str(port)),
                look_up=lambda: int(store.get(f"{key}/port")),
            )
            self._thread = threading.Thread(target=self._watch, name="watch for faults", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self.world.group is None:
            return
        if error is None:
            try:  # the watch is over when all are done: one may still be saving
                float(sum_count(1, self.world.group, self.world.device))
            except RuntimeError as lost:
                error = lost
        if error is not None:
            self._fail(error)
        self._end_thread()
        self._lines.close(goodbye=True)

    def _end_thread(self) -> None:
        """Afterwards this thread may read the lines."""
        self._ended.set()
        self._lines.wake()
        self._thread.join(2 * POLL)

    # The thread.

    def _watch(self) -> None:
        """Ends this process when another rank has failed or died; the only one to read lines and abort key."""
        cause: str | None = None
        while not self._ended.is_set():
            dead = self._lines.wait(POLL)
            if cause is None and (cause := self._look(dead)) is not None:
                self._known.put(cause)
                self._follow(cause)
            if self._failing_since is not None and time.monotonic() - self._failing_since > LEAVE:
                self._exit(1)

    def _look(self, dead: list[int]) -> str | None:
        """Why the job is to end, if it is. dead: ranks whose lines have ended; told on behalf of them."""
        if 0 in dead and not self._store_outlives_rank_zero:
            return "rank 0 died, and the store with it"
        try:
            if self._store.check([f"{self._key}/abort"]):
                return str(self._store.get(f"{self._key}/abort").decode())
            if not dead:
                return None
            cause = f"rank {dead[0]} died without a word"
            if self._claim():
                self._print(
                    f"{cause}: killed by a signal (out of memory?), or its machine; its launcher knows the code"
                )
            self._store.set(f"{self._key}/abort", cause)
            return cause
        except RuntimeError:  # the store has gone, and with it the process that had it
            dead = dead or self._lines.wait(POLL)
        if dead:
            return f"rank {dead[0]} died, and the store too"
        if self._lines.others():
            return "the store does not answer"
        self._ended.set()  # rank zero said goodbye: it has ended, and well
        return None

    def _follow(self, cause: str) -> None:
        """Leaves because of another rank; the main thread is wherever it is, unless it is leaving by itself."""
        stack = traceback.extract_stack(sys._current_frames().get(self._main))
        # It may have lost its peer already, and be on its way out: then its own error knows better where it was.
        self._failing.wait(UNWINDING)
        with self._leaving:
            if self._failing_since is None:
                last_words(cause)
                self._print(f"leaving, because {cause}; it was at {_place(stack)}")
                self._exit(1)

    # The main thread.

    def _fail(self, error: BaseException) -> None:
        """Tells everybody and ends this process."""
        _hear_no_more_of_workers()
        with self._leaving:
            self._failing_since = time.monotonic()
        self._failing.set()
        text = "".join(traceback.format_exception(error))
        line = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        code, brief = _exit_code(error, self.brief), isinstance(error, tuple(self.brief))
        try:
            cause = self._wait_for_cause(HOLD_BACK) if _is_lost_connection(error) else None
            if cause is None and self._claim():
                self._print(line if brief else f"failed first:\n{text}")
                cause = f"rank {self.world.rank} failed with {line if brief else type(error).__name__}"
                self._store.set(f"{self._key}/abort", cause)
                self._exit(code)
            cause = cause or self._wait_for_cause(LAST_WORDS) or "another rank failed first"
        except RuntimeError:
            cause = self._wait_for_cause(LAST_WORDS) or "the store does not answer"
        if not cause.startswith(f"rank {self.world.rank} "):
            last_words(cause)
        if not (brief and cause.endswith(line)):
            place = _place(traceback.extract_tb(error.__traceback__))
            self._print(f"leaving, because {cause}; its own error, at {place}: {line}")
        self._exit(code)

    def _wait_for_cause(self, seconds: float) -> str | None:
        with suppress(queue.Empty):
            return self._known.get(timeout=seconds)
        return None

    # Both.

    def _claim(self) -> bool:
        mine = str(self.world.rank)
        return bool(self._store.compare_set(f"{self._key}/first", "", mine) == mine.encode())

    def _name(self) -> str:
        return f"rank {self.world.rank} of {self.world.size} ({socket.gethostname()}, pid {os.getpid()})"

    def _print(self, text: str) -> None:
        """One write, past the lock of `sys.stderr`, which the main thread may have."""
        between = " " if text.startswith("failed first:") else ": "
        os.write(2, f"{self._name()}{between}{text.rstrip()}\n".encode())

    def _exit(self, code: int) -> None:
        flushing = threading.Thread(target=lambda: [each.flush() for each in (sys.stdout, sys.stderr)], daemon=True)
        flushing.start()
        flushing.join(0.5)  # a thread that is stuck in a write may have the stream's lock
        if self.world.rank == 0:
            if threading.current_thread() is not self._thread:
                self._end_thread()
            self._lines.wait_for_others_to_go(LINGER)
        os._exit(code)


def _hear_no_more_of_workers() -> None:
    """Takes off torch's handler, which raises, wherever this process is, when a worker of a loader has died."""
    if threading.current_thread() is threading.main_thread():
        with suppress(RuntimeError):  # that very exception
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _own_store(world: World) -> tuple[Any, str, str]:
    """A connection to the group's store of our own, the prefix of this watch's keys, the host. Collective."""
    from torch.distributed.distributed_c10d import _get_default_store

    server = shared = _get_default_store()
    while hasattr(server, "underlying_store"):
        server = server.underlying_store
    if not isinstance(server, dist.TCPStore):
        raise RuntimeError(f"the group's store is a {type(server).__name__}; start it with init_method='env://'")
    token = f"watch/{shared.add(f'watch/{world.rank}', 1)}/token"
    if world.rank == 0:
        shared.set(token, os.urandom(16).hex())
    secret = shared.get(token).decode()
    own = dist.TCPStore(server.host, server.port, is_master=False, wait_for_workers=False, timeout=shared.timeout)
    own.set(f"reference_trainer/{secret}/token", secret)
    return own, f"reference_trainer/{secret}", server.host


def _is_lost_connection(error: BaseException | None) -> bool:
    """Whether the error, or one that led to it, says that a peer has gone: not a cause but a consequence."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, RuntimeError | OSError) and _LOST.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _exit_code(error: BaseException, brief: Mapping[type[Exception], int]) -> int:
    """The process's, never 0: the others cannot finish."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) and error.code else 1
    if isinstance(error, KeyboardInterrupt):
        return 130
    return next((code for kind, code in brief.items() if isinstance(error, kind)), 1)


def _place(stack: traceback.StackSummary) -> str:
    frames = [each for each in stack if not _LIBRARY.search(each.filename)] or list(stack)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else "no line of Python"


KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
ANSWER_TIME, GREETING = 10.0, 1.0  # Seconds in which rank zero must answer, and a rank must say who it is.
_GOODBYE, _RANK_BYTES = b".", 4


class Lifelines:
    """Rank zero holds a connection to every rank, every other rank one to rank zero. Making one is collective.

    token: bytes that only ranks of this job know; strangers are sent away. publish(port), look_up() -> port: how rank
    zero's port gets to the others. host: rank zero's, as the others reach it. ``OSError`` where it is not.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        token: bytes,
        host: str,
        publish: Callable[[int], None],
        look_up: Callable[[], int],
    ) -> None:
        self._selector, self._ranks = selectors.DefaultSelector(), dict[socket.socket, int]()
        self._token, self._listener = token, socket.socket()
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        if rank == 0:
            # Any interface: which one the other machines see is known to them only, by the host that they were given.
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            self._listener = socket.create_server(("", 0), family=family, backlog=size, dualstack_ipv6=dual)
            self._selector.register(self._listener, selectors.EVENT_READ)
            publish(self._listener.getsockname()[1])
        else:
            connection = socket.create_connection((host, look_up()), timeout=ANSWER_TIME)
            connection.sendall(token + rank.to_bytes(_RANK_BYTES, "big"))
            self._add(connection, 0)
        _OPEN.add(self)

    def wait(self, seconds: float) -> list[int]:
        """Ranks that have died; returns at once when there is one, or when it was woken, else after the time. Local."""
        dead: list[int] = []
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._woken:
                continue
            connection, said = key.fileobj, b""
            assert isinstance(connection, socket.socket)
            if connection is self._listener:
                self._admit()
                continue
            with suppress(OSError):  # reset, or keepalive had no answer
                said = connection.recv(1)
            dead += [] if said == _GOODBYE else [self._ranks[connection]]
            self._drop(connection)
        return dead

    def _admit(self) -> None:
        connection, wanted = self._listener.accept()[0], len(self._token) + _RANK_BYTES
        connection.settimeout(GREETING)
        said = b""
        with suppress(OSError):
            said = connection.recv(wanted, socket.MSG_WAITALL)
        if len(said) == wanted and said.startswith(self._token):
            self._add(connection, int.from_bytes(said[len(self._token) :], "big"))
        else:
            connection.close()

    def wake(self) -> None:
        """Makes `wait` return, now and from now on. Local; any thread."""
        self._waker.send(b".")

    def others(self) -> list[int]:
        """Ranks whose connection is open. Local."""
        return sorted(self._ranks.values())

    def wait_for_others_to_go(self, seconds: float) -> None:
        """Returns when every connection is closed, at the latest after the time. Local."""
        deadline = time.monotonic() + seconds
        while self.others() and time.monotonic() < deadline:
            self.wait(0.05)
            time.sleep(0.01)  # it returns at once when it was woken

    def close(self, *, goodbye: bool) -> None:
        """Ends the connections; with a goodbye the other ends do not take it for a death. Local."""
        _OPEN.discard(self)
        for connection in list(self._ranks):
            with suppress(OSError):
                connection.sendall(_GOODBYE * goodbye)
            self._drop(connection)
        for each in (self._selector, self._listener, self._waker, self._woken):
            each.close()

    def close_in_child(self) -> None:
        """A forked child would keep its parent's connections open after the parent's death. Local."""
        for connection in [
            *self._ranks,
            self._listener,
            self._waker,
            self._woken,
        ]:  # epoll's registrations belong to the parent too
            os.close(connection.detach())

    def _add(self, connection: socket.socket, rank: int) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name in set(KEEPALIVE) & set(dir(socket)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), KEEPALIVE[name])
        self._ranks[connection] = rank
        self._selector.register(connection, selectors.EVENT_READ)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._ranks.pop(connection)
        connection.close()


_OPEN: weakref.WeakSet[Lifelines] = weakref.WeakSet()


def _close_in_child() -> None:
    for lines in list(_OPEN):
        lines.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
