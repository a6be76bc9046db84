"""The status API and the page of one run, read-only: three addresses, GET and HEAD, nothing else. Torch-free.

    GET /                        page.html
    GET /api/training/status     `reading.RunStatus` as JSON
    GET /api/training/metrics    `history.History.as_dict` as JSON

No part of an address is ever a file name. The Host header must name this machine as the server was told, so that a page
of somebody else whose name leads here (DNS rebinding) gets nothing. What is read is kept for a moment and for all
requests: a thousand of them cost one look at the files.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from ..records import finite
from .history import History
from .reading import MonitorError, read_run

__all__ = ["LOOPBACK", "MonitorServer"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_THREADS = 64
"""Requests that are answered at once; the others wait."""
_ACCEPTED = 256
"""Connections that are taken at once, each a file descriptor; the others wait in the kernel, `request_queue_size` of
them."""
_BODY = 1 << 20
"""Bytes of a request's body that are read, to be thrown away."""
_FRESH = 0.5
"""Seconds for which what was read is handed out again."""

T = TypeVar("T")


class Kept:
    """What a function returns, made anew when it is asked for and older than ``seconds``; one thread makes it."""

    def __init__(self, make: Callable[[], bytes], seconds: float = _FRESH) -> None:
        self._make, self._seconds, self._lock = make, seconds, threading.Lock()
        self._value, self._until = b"", 0.0

    def __call__(self) -> bytes:
        with self._lock:
            if time.monotonic() >= self._until:
                self._value = self._make()
                self._until = time.monotonic() + self._seconds
            return self._value


class MonitorServer(ThreadingHTTPServer):
    """Serves the run in ``folder`` on ``host``:``port`` (0: a free one) until ``shutdown``; used as a context.

    allow_hosts: names under which it may be asked, beside those of this machine alone. ``MonitorError`` where the
    folder holds no run; ``OSError`` where the port cannot be had.
    """

    request_queue_size = 1024
    daemon_threads = True

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int = 0, allow_hosts: Sequence[str] = ()
    ) -> None:
        read_run(folder)
        history = History(folder)

        def metrics() -> bytes:
            history.update()
            return _json(history.as_dict())

        page = resources.files(__package__).joinpath("page.html").read_bytes()
        self.answers: dict[str, tuple[str, Callable[[], bytes]]] = {
            "/": ("text/html; charset=utf-8", lambda: page),
            "/api/training/status": ("application/json", Kept(lambda: _status(folder))),
            "/api/training/metrics": ("application/json", Kept(metrics)),
        }
        self.policy = content_policy(page.decode())
        self.names = {*LOOPBACK, *map(host_name, allow_hosts)}
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="request")
        self._accepted = threading.BoundedSemaphore(_ACCEPTED)
        super().__init__((host, port), Handler)

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        host, port = self.server_address[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(host), str(host))
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"

    def server_bind(self) -> None:
        """Without the look-up of this machine's name that HTTPServer makes, which may take its time."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """On one of a bounded number of threads."""
        self._accepted.acquire()
        answered = self._pool.submit(self.process_request_thread, request, client_address)
        answered.add_done_callback(lambda _: self._accepted.release())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's error; others are printed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Ends the socket and the threads."""
        super().server_close()
        self._pool.shutdown(wait=False, cancel_futures=True)


class Handler(BaseHTTPRequestHandler):
    """One request. HTTP/1.0: a connection is not kept, so that it does not keep a thread."""

    server: MonitorServer
    timeout = 3
    """Seconds for which a client may be silent: browsers open connections ahead of time."""

    def do_GET(self) -> None:
        """The answer to an address that is known."""
        if not self._is_for_us():
            told = "this server does not answer to that name; start it with --allow-host NAME to let it"
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, told)
            return
        found = self.server.answers.get(self.path.partition("?")[0])
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND, f"there are {', '.join(self.server.answers)}")
            return
        kind, make = found
        try:
            self._answer(HTTPStatus.OK, kind, make())
        except MonitorError as error:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A refusal in one line of plain text; a method that is not known here is like any other but GET and HEAD."""
        code = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        text = "read-only: GET and HEAD" if code == HTTPStatus.METHOD_NOT_ALLOWED else message or code.phrase
        self._take_in_body()
        self._answer(code, "text/plain; charset=utf-8", f"{code.value} {code.phrase}: {text}\n".encode())

    def _is_for_us(self) -> bool:
        """Whether the Host header is one name that the server answers to; its port may be that of a tunnel."""
        given = self.headers.get_all("Host", [])
        return len(given) == 1 and host_name(given[0]) in self.server.names

    def _take_in_body(self) -> None:
        """Reads what was sent along: a connection that is closed before that is reset, and the answer is lost."""
        length = self.headers.get("Content-Length", "") if hasattr(self, "headers") else ""
        if length.isdecimal():
            self.rfile.read(min(int(length), _BODY))

    def _answer(self, code: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def version_string(self) -> str:
        """Says nothing of the versions behind it."""
        return "reference-trainer"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a page asks every few seconds."""


def host_name(given: str) -> str:
    """The name in a Host header, without its port, as names are compared."""
    return re.sub(r"(?<=[^:]):\d*$", "", given.strip()).strip("[]").lower()


def content_policy(page: str) -> str:
    """What the page may do: its own script and style, and questions to this server. Nothing from elsewhere."""
    allowed = {
        tag: " ".join(f"'sha256-{_digest(text)}'" for text in re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL))
        for tag in ("script", "style")
    }
    return (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _status(folder: Path) -> bytes:
    return _json(dataclasses.asdict(read_run(folder)))


def _json(value: Any) -> bytes:
    return json.dumps(finite(value), allow_nan=False).encode()
