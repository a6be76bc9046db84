"""Takes connections and their requests in one thread, however slowly clients send; answers are made on few others.

A request has to come as a whole within `HEAD` seconds: a client that sends a byte now and then holds no thread, and is
refused in time. Torch-free.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

__all__ = ["Connections"]

HEAD = 10.0
"""Seconds for the whole head of a request: browsers open connections ahead of time, and machines may be busy."""
CROWDED = 3.0
"""The same where all places are taken: the oldest of those that have not asked yet goes first."""
_ANSWER = 10.0
"""Seconds for a client to take its answer."""
_LINGER = 2.0
"""Seconds in which the rest of what a client sends is thrown away: a connection that is closed before that is reset,
and the answer is lost."""
_BODY = 1 << 20
"""Bytes of that."""
_LONGEST = 1 << 16
"""Bytes of a head."""
_PLACES = 256
"""Connections that are taken at once, each a file descriptor; the others wait in the kernel."""
_THREADS = 16
"""Answers that are made at once."""
_END = re.compile(rb"\n\r?\n")


class Connections:
    """The clients of a listening socket. Local.

    answer: makes the answer to a head, called on one of a few threads; none where nothing is to be sent. refuse: that
    to a client which has not sent a whole one, with the reason.
    """

    def __init__(
        self,
        listening: socket.socket,
        answer: Callable[[bytes], bytes],
        refuse: Callable[[HTTPStatus, str], bytes],
    ) -> None:
        self._listening, self._answer, self._refuse = listening, answer, refuse
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="request")
        self._pool.submit(int)  # a first thread, as long as there is nothing else to do
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._ended.set()
        self._ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._left: asyncio.Event | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._asking: dict[asyncio.Task[None], float] = {}
        """Connections without a whole head, and since when, the oldest first."""

    def serve(self) -> None:
        """Until ``stop``, or an interrupt."""
        self._ended.clear()
        try:
            asyncio.run(self._serve())
        finally:
            self._loop = None
            self._ended.set()

    def stop(self) -> None:
        """Ends ``serve``, from another thread, and waits for its end."""
        with self._lock:
            self._ending = True
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
        self._ended.wait()

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _serve(self) -> None:
        self._listening.setblocking(False)
        self._stop, self._left = asyncio.Event(), asyncio.Event()
        with self._lock:
            if self._ending:
                return
            self._loop = asyncio.get_running_loop()
        accepting, stopped = asyncio.ensure_future(self._accept()), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((accepting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                accepting.result()  # raises what has ended it
        finally:
            with self._lock:
                self._ending, self._loop = True, None
            for task in (accepting, stopped, *self._open):
                task.cancel()
            await asyncio.gather(accepting, stopped, *self._open, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._place()
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError:  # no file descriptor is left, or the client has gone
                await asyncio.sleep(0.05)
                continue
            task = asyncio.ensure_future(self._client(connection))
            self._open.add(task)
            self._asking[task] = time.monotonic()
            task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._asking.pop(task, None)
        assert self._left is not None
        self._left.set()

    async def _place(self) -> None:
        """Waits until there is one; where all are taken, the client goes that has asked for nothing for longest."""
        assert self._left is not None
        while len(self._open) >= _PLACES:
            self._left.clear()
            wait = None
            if self._asking:
                task, since = next(iter(self._asking.items()))
                wait = since + CROWDED - time.monotonic()
                if wait <= 0:
                    del self._asking[task]
                    task.cancel()
                    continue
            try:
                await asyncio.wait_for(self._left.wait(), wait)
            except asyncio.TimeoutError:
                continue

    async def _client(self, connection: socket.socket) -> None:
        with connection:
            try:
                await self._asked(connection)
            except (OSError, asyncio.TimeoutError):
                return  # a client that went away, or does not take its answer, is nobody's error
            except Exception:  # noqa: BLE001 - of one answer; the others go on
                traceback.print_exc()

    async def _asked(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        try:
            head = await asyncio.wait_for(self._head(connection), HEAD)
        except (asyncio.TimeoutError, asyncio.CancelledError):
            if self._ending:
                raise
            found = self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request has not come as a whole in time")
        else:
            self._asking.pop(task, None)
            found = await loop.run_in_executor(self._pool, self._found, head) if head else b""
        if not found:
            return
        await asyncio.wait_for(loop.sock_sendall(connection, found), _ANSWER)
        connection.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(self._rest(connection), _LINGER)

    def _found(self, head: bytes) -> bytes:
        if _END.search(head):
            return self._answer(head)
        if len(head) >= _LONGEST:
            told = f"the head of a request has at most {_LONGEST} bytes"
            return self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, told)
        return self._refuse(HTTPStatus.BAD_REQUEST, "the request ends before its head does")

    async def _head(self, connection: socket.socket) -> bytes:
        """What comes up to the empty line after the headers, or to the end, or to too much."""
        loop = asyncio.get_running_loop()
        found = bytearray()
        while len(found) < _LONGEST:
            part = await loop.sock_recv(connection, 4096)
            if not part:
                break
            before = max(0, len(found) - 2)
            found += part
            if _END.search(found, before):
                break
        return bytes(found)

    async def _rest(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        left = _BODY
        while left > 0 and (part := await loop.sock_recv(connection, 65536)):
            left -= len(part)
