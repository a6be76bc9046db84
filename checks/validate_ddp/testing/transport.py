"""Frames over Unix sockets: a length, a pickle, and file descriptors where they are sent along."""

from __future__ import annotations

import array
import os
import pickle
import select
import socket
import struct
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

_HEADER = struct.Struct("!Q")
_open: weakref.WeakSet[Channel] = weakref.WeakSet()


class Closed(Exception):
    """The other side has closed the channel, or has died."""


class Channel:
    """One end of a stream of messages. Not thread-safe: one thread sends, one receives."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self.fd = end.fileno()
        _open.add(self)

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Sends one message; raises ``Closed``. Blocks while the other side does not read."""
        self.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL), descriptors)

    def send_bytes(self, body: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends a message that is pickled already."""
        frame = _HEADER.pack(len(body)) + body
        try:
            if descriptors:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                sent = self.socket.sendmsg([frame], rights)
                frame = frame[sent:]
            self.socket.sendall(frame)
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self, timeout: float | None = None) -> Any:
        """The next message; raises ``Closed``, or ``TimeoutError`` where none is whole within ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.has_message():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if left is not None and not wait_readable([self], left):
                raise TimeoutError
            self.pump()
        return self.pop()

    def pump(self) -> None:
        """Reads what has come, at least something; blocks if there is nothing. Raises ``Closed`` at the end."""
        try:
            data, ancillary, _, _ = self.socket.recvmsg(1 << 18, socket.CMSG_SPACE(1024))
        except OSError as error:
            raise Closed(str(error)) from None
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(raw[: len(raw) - len(raw) % numbers.itemsize])
                self._descriptors += numbers
        if not data:
            raise Closed("end of stream")
        self._buffer += data

    def has_message(self) -> bool:
        """Whether ``pop`` has something whole."""
        buffer = self._buffer
        return len(buffer) >= _HEADER.size and len(buffer) >= _HEADER.size + _HEADER.unpack_from(buffer)[0]

    def pop(self) -> Any:
        """The first message that was pumped in. Both sides are our own processes: the pickle is trusted."""
        end = _HEADER.size + _HEADER.unpack_from(self._buffer)[0]
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        return pickle.loads(body)  # noqa: S301

    def descriptors(self, count: int) -> list[int]:
        """The next ``count`` file descriptors that came along."""
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken

    def close(self) -> None:
        """Closes this end; the other side reads ``Closed``."""
        _open.discard(self)
        self.socket.close()


def pair() -> tuple[Channel, socket.socket]:
    """A channel, and the socket of its other end, to be given to another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours), theirs


def from_descriptor(descriptor: int) -> Channel:
    """The channel over a socket that was inherited or sent."""
    return Channel(socket.socket(fileno=descriptor))


def wait_readable(channels: Iterable[Channel], timeout: float | None) -> list[Channel]:
    """Those of the channels with something to read, within ``timeout`` seconds; empty if there is nothing."""
    by_fd = {channel.fd: channel for channel in channels}
    # poll, not select: a program with more than 1,024 open files must work too.
    poll = select.poll()
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    # Rounded up, or the last millisecond is spent spinning.
    events = poll.poll(None if timeout is None else int(timeout * 1000 + 0.999))
    return [by_fd[fd] for fd, _ in events]


def _close_all_in_child() -> None:
    # A forked child (of the parent, of the forkserver, a loader's worker of a rank) must not hold the channels of its
    # parent open: their other ends wait to read the end of them.
    for channel in list(_open):
        channel.close()


os.register_at_fork(after_in_child=_close_all_in_child)
