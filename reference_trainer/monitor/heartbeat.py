"""What each rank says of itself: RUN/status/rank00000.json, written anew every few seconds by a thread. Torch-free."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..records import as_json

if TYPE_CHECKING:
    import psutil
    import torch

    from ..launch import World

STATES = ("starting", "running", "evaluating", "saving", "stopped", "finished", "failed")
ENDED = STATES[4:]  # After these no heartbeat is to be expected.
_MOST_OFTEN = 0.5  # Seconds from one write to the next: evaluations and intervals may be shorter than that.


class Eta:
    """Seconds to the end of ``total`` steps: by an exponentially weighted mean of their times, and by the mean time of
    what comes between them, ``every`` so many steps and at the end. Times are in seconds of one clock. Local.

    Without the first step, which waits for workers, kernels and caches.
    """

    def __init__(self, total: int, *, step: int = 0, every: Mapping[str, int] | None = None) -> None:
        self.total, self.step, self._every = total, step, every or {}
        self._since: float | None = None
        self._sum = self._of = 0.0
        self._between: dict[str, tuple[int, float]] = {}

    def advance(self, now: float, weight: float = 0.02) -> None:
        if self._since is not None:
            self._sum += weight * (now - self._since - self._sum)
            self._of += weight * (1.0 - self._of)  # at first the plain mean
        self.step, self._since = self.step + 1, now

    def between(self, what: str, seconds: float) -> None:
        """An evaluation or a save is no part of the step that is under way."""
        self._since = None if self._since is None else self._since + seconds
        times, total = self._between.get(what, (0, 0.0))
        self._between[what] = (times + 1, total + seconds)

    @property
    def step_seconds(self) -> float | None:
        """Of a step, smoothed; None before the second."""
        return self._sum / self._of if self._of else None

    def remaining(self, now: float) -> float | None:
        """Seconds from now to the end; None before the second step. What has not been seen yet is not counted."""
        each, since = self.step_seconds, self._since
        if each is None or since is None:
            return None
        left = (self.total - self.step) * each - min(max(now - since, 0.0), each)
        for what, (times, seconds) in self._between.items():
            if every := self._every.get(what, 0):
                left += (-(-self.total // every) - self.step // every) * seconds / times
        return max(0.0, left)


def usage(process: psutil.Process, device: torch.device) -> dict[str, float | int | None]:
    """CPU since the last call in percent of a core, memory; of the GPU (None without) its use and memory. Local.

    The loader's workers are processes of their own, and not in it.
    """
    found: dict[str, float | int | None] = {"cpu_percent": process.cpu_percent()}
    found |= {"memory_bytes": process.memory_info().rss, "device_percent": None}
    found |= {"device_memory_bytes": None, "device_total_bytes": None}
    if device.type == "cuda":
        import torch

        found["device_memory_bytes"] = int(torch.cuda.memory_reserved(device))
        found["device_total_bytes"] = int(torch.cuda.get_device_properties(device).total_memory)
        with suppress(Exception):  # of a slice of a GPU it is not known
            found["device_percent"] = int(torch.cuda.utilization(device))
    return found


def status_path(folder: Path, rank: int) -> Path:
    return folder / "status" / f"rank{rank:05}.json"


class Heartbeat:
    """The heartbeats of this rank. interval: seconds; 0: the first and the last alone. ``of``: see `Eta`. Local."""

    def __init__(self, folder: Path, world: World, interval: float, *, started: float, **of: Any) -> None:
        import psutil  # here, for those who only read

        self.path, self.interval, self._device = status_path(folder, world.rank), interval, world.device
        self._eta, self._process = Eta(**of), psutil.Process()
        self._process.cpu_percent()  # later calls count from here
        self._head = {
            "version": 1, "rank": world.rank, "world_size": world.size, "host": socket.gethostname(),
            "pid": os.getpid(), "device": str(world.device), "launcher": world.launcher, "started": started,
            "interval": interval, "total": self._eta.total,
        }  # fmt: skip
        self.said: dict[str, Any] = {
            "state": "starting", "message": "", "metrics": {}, "lr": None, "samples_per_second": None,
            "evaluations": {},
        }  # fmt: skip
        """Replaced as a whole, never changed: the thread reads it at any moment."""
        self._began = time.monotonic()
        self._wake, self._ending = threading.Event(), threading.Event()
        self._writing, self._told = threading.Lock(), False

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._write()
        if self.interval > 0:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def advance(self) -> None:
        """A step was made; cheap, and written with the next heartbeat."""
        self._eta.advance(time.monotonic())
        if self.said["state"] == "starting":
            self.say(state="running")

    def say(self, **fields: Any) -> None:
        self.said = {**self.said, **fields}
        self._wake.set()

    def evaluated(self, data: str, step: int, metrics: dict[str, float]) -> None:
        self.say(evaluations={**self.said["evaluations"], data: {"step": step, "metrics": metrics}})

    @contextmanager
    def doing(self, state: str) -> Iterator[None]:
        """Something between steps: "evaluating", "saving". After an exception it stays what it was doing."""
        before, began = self.said["state"], time.monotonic()
        self.say(state=state)
        yield
        self._eta.between(state, time.monotonic() - began)
        self.say(state=before)

    def end(self, state: str, message: str = "") -> None:
        """The last heartbeat: "stopped", "finished" or "failed"."""
        self.say(state=state, message=message)
        self._ending.set()
        self._write(last=True)

    def _beat(self) -> None:
        gap = min(_MOST_OFTEN, self.interval / 2)
        while not self._ending.wait(gap):
            self._wake.wait(self.interval - gap)
            self._wake.clear()
            self._write()

    def _write(self, *, last: bool = False) -> None:
        if not self._writing.acquire(timeout=2.0):  # another thread is stuck in it: the file system hangs
            return
        if self._ending.is_set() and not last:  # the process may end at any moment now, and leave half a file
            self._writing.release()
            return
        now, said = time.monotonic(), self.said
        eta = None if said["state"] in ENDED else self._eta.remaining(now)
        times = {"time": round(time.time(), 3), "elapsed": round(now - self._began, 3), "eta": eta}
        steps = {
            "step": self._eta.step,
            "step_seconds": self._eta.step_seconds,
            "usage": usage(self._process, self._device),
        }
        beside = self.path.with_name(f".{self.path.name}")
        try:
            beside.write_bytes(as_json({**self._head, **said, **times, **steps}))
            os.replace(beside, self.path)
        except OSError as error:  # the run is worth more than its status: it goes on, and looks stale
            if not self._told:
                print(f"{self.path} cannot be written, so this rank looks stale: {error}", file=sys.stderr, flush=True)
            self._told = True
        finally:
            self._writing.release()
