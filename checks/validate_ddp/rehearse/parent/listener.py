"""Listens to the processes of a run: a Unix socket, a connection each, JSON lines."""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Callable, Iterator

from validate_ddp.record.events import Keeper
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol


class Listener:
    """The command's end of the channel. Connections are numbered in the order in which they come."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "events")
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(self.path)
        self.server.listen(256)
        self.server.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.server, selectors.EVENT_READ, None)
        self.buffers: dict[int, bytes] = {}
        self.sockets: dict[int, socket.socket] = {}
        self.count = 0
        self.keeper = Keeper()

    def receive(self, seconds: float) -> Iterator[protocol.Event]:
        """What came within so many seconds at most: each process's events, with its number as ``process``.

        The end of a connection is an event too, ``gone``.
        """
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                self._accept()
                continue
            if callable(key.data):
                if not key.data(key.fd):
                    self.selector.unregister(key.fd)
                continue
            number = key.data
            data = self._read(self.sockets[number])
            if data is None:
                continue
            if not data:
                self.selector.unregister(self.sockets[number])
                self.sockets.pop(number).close()
                yield protocol.Gone(process=number)
                continue
            *lines, rest = (self.buffers[number] + data).split(b"\n")
            self.buffers[number] = rest
            for line in lines:
                yield self._decoded(line, number)

    def _decoded(self, line: bytes, number: int) -> protocol.Event:
        try:
            held = json.loads(line)
            if isinstance(held, dict) and isinstance(held.get("event"), str):
                return self.keeper.kept(held, number)
        except (ValueError, TypeError, LookupError):
            pass
        return protocol.Fault(where="channel", message=f"no event: {line[:80]!r}", process=number)

    def also(self, descriptor: int, read: Callable[[int], bool]) -> None:
        """Waits for a descriptor too: ``read`` is called when something has come there, until it gives False."""
        self.selector.register(descriptor, selectors.EVENT_READ, read)

    def _accept(self) -> None:
        connection, _ = self.server.accept()
        connection.setblocking(False)
        number, self.count = self.count, self.count + 1
        self.sockets[number] = connection
        self.buffers[number] = b""
        self.selector.register(connection, selectors.EVENT_READ, number)

    def _read(self, connection: socket.socket) -> bytes | None:
        try:
            return connection.recv(1 << 18)
        except BlockingIOError:
            return None
        except OSError:  # reset by a process that was killed
            return b""

    def ask(self, number: int, question: str) -> None:
        """Sends one line to a process; nothing where it has gone."""
        connection = self.sockets.get(number)
        if connection is not None:
            try:
                connection.send((question + "\n").encode())
            except OSError:
                return

    def close(self) -> None:
        """Closes everything."""
        for connection in self.sockets.values():
            connection.close()
        self.selector.close()
        self.server.close()
