"""A page of runs as `status` shows them, with their loss, and their status for tools: GET, nothing else. Torch-free.

For this machine alone, unless told otherwise: it listens at 127.0.0.1, and the Host header must name it (DNS
rebinding). No address is a file.
"""

from __future__ import annotations

import functools
import html
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..core import ConfigError
from .reading import read_run, shown
from .records import as_json, log_path, read_log

_NAMES = ("127.0.0.1", "localhost", "[::1]")
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"><title>{}</title>
<main>{}</main></html>
"""
_RUN = '<section><pre style="overflow-x:auto">{}</pre>{}</section>\n'
WIDTH, HEIGHT = 640, 160
_FINEST = 2 * WIDTH  # Points; of more the eye sees none.


@functools.lru_cache(64)
def losses(path: Path, size: int) -> list[tuple[int, float]]:
    """Step and loss of each interval in a log, read when its size is another one than at the last look. Local.

    A run that goes on from an earlier step has that part anew.
    """
    points: list[tuple[int, float]] = []
    for record in read_log(path):
        with suppress(KeyError, TypeError, ValueError):
            if record["kind"] == "interval":
                step, loss = int(record["step"]), float(record["metrics"]["loss"])
                while points and points[-1][0] >= step:
                    points.pop()
                points += [(step, loss)] * math.isfinite(loss)
    return points


def curve(folder: Path) -> str:
    """The losses that rank zero of a run has logged, as a picture; empty where there is no line to draw yet. Local."""
    path = log_path(folder, 0)
    points = losses(path, path.stat().st_size) if path.is_file() else []
    if len(points) < 2:
        return ""
    shown = [*points[: -1 : 1 + len(points) // _FINEST], points[-1]]
    first, last = shown[0][0], shown[-1][0]
    low, high = min(loss for _, loss in shown), max(loss for _, loss in shown)
    across, up = WIDTH / (last - first), HEIGHT / ((high - low) or 1.0)
    line = " ".join(f"{(step - first) * across:.1f},{HEIGHT - (loss - low) * up:.1f}" for step, loss in shown)
    said = f"loss {high:.4g} to {low:.4g}, steps {first:,} to {last:,}; now {shown[-1][1]:.4g}"
    drawn = f'<polyline points="{line}" fill="none" stroke="currentColor" vector-effect="non-scaling-stroke"/>'
    box = f'viewBox="0 -2 {WIDTH} {HEIGHT + 4}" preserveAspectRatio="none"'
    style = f"width:100%;max-width:{WIDTH}px;height:{HEIGHT}px;display:block"
    picture = f'<svg {box} style="{style}" role="img" aria-label="{said}">{drawn}</svg>'
    return f'<figure style="margin:1em 0">{picture}<figcaption>{said}</figcaption></figure>'


class MonitorServer(ThreadingHTTPServer):
    """Serves runs until ``shutdown``; a context. port 0: a free one. ``ConfigError``, ``OSError``."""

    request_queue_size, daemon_threads = 1024, True

    def __init__(self, *folders: Path, host: str = "127.0.0.1", port: int = 0, allow_host: Sequence[str] = ()) -> None:
        self.names = (*_NAMES, *map(str.lower, allow_host))

        def page() -> bytes:
            runs = [read_run(folder) for folder in folders]
            title = ", ".join(f"{each['name']} {each['state']}" for each in runs)
            parts = [_RUN.format(html.escape(shown(run)), curve(at)) for run, at in zip(runs, folders, strict=True)]
            return _PAGE.format(html.escape(title), "".join(parts)).encode()

        page()
        self.answers: dict[str, Callable[[], bytes]] = {
            "/": page,
            "/api/training/status": lambda: as_json(read_run(folders[0])),
            "/api/training/metrics": lambda: as_json(list(read_log(log_path(folders[0], 0)))[-1000:]),
            "/api/training/runs": lambda: as_json([read_run(folder) for folder in folders]),
        }
        super().__init__((host, port), Handler)

    @property
    def url(self) -> str:
        return "http://{}:{}/".format(*self.server_address[:2])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that went away is nobody's error."""


class Handler(BaseHTTPRequestHandler):
    """The answer to one request. HTTP/1.0: a connection is not kept."""

    server: MonitorServer
    default_request_version = "HTTP/1.0"
    timeout = 10.0  # seconds without a byte of the client

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        name = re.sub(r":\d*$", "", hosts[0]).lower() if len(hosts) == 1 else ""  # its port may be that of a tunnel
        found = self.server.answers.get(self.path.partition("?")[0])
        if name not in self.server.names:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, f"this server answers to {', '.join(self.server.names)}")
        elif found is None:
            self.send_error(HTTPStatus.NOT_FOUND, f"there are {', '.join(self.server.answers)}")
        else:
            try:
                self._answer(found())
            except (ConfigError, OSError) as error:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _answer(self, content: bytes) -> None:
        kind = "application/json" if self.path.startswith("/api") else "text/html; charset=utf-8"
        own = {"Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store"}
        self.send_response(HTTPStatus.OK)
        for header, value in {**own, "X-Content-Type-Options": "nosniff"}.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(content)

    def refuse(self) -> None:
        """Any other method."""
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "read-only: GET")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = refuse

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a page asks every few seconds."""
