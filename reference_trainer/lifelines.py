"""Which ranks have died, from the kernel: a connection between rank zero and each other rank, closed when either dies.

Not heartbeats: a rank that holds the GIL sends none. After a dead machine TCP keepalive gives up in 30 s.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

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
