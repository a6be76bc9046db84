"""What each rank leaves to be read: its log, a line at a time, RUN/metrics/rank00000.jsonl, and its heartbeat,
RUN/status/rank00000.json, written anew every few seconds by a thread. docs/monitor.md has both. Torch-free.

Numbers that are not finite are the strings "nan", "inf" and "-inf", which JSON lacks; reading turns them back.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import ConfigError

if TYPE_CHECKING:
    import psutil
    import torch

    from ..core.launch import World

VERSION = 1  # Of the lines; a change that a reader has to know of makes it 2.


def log_path(folder: Path, rank: int) -> Path:
    return folder / "metrics" / f"rank{rank:05}.jsonl"


class RankLog:
    """The JSONL file of one rank: a line is on its way to the disk when ``write`` returns. Local."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank, self.path = rank, log_path(folder, rank)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_file():  # half a line, of a job that was killed: the next would be joined to it
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    def write(self, kind: str, step: int, **fields: Any) -> None:
        """One line. fields: what JSON holds; numbers that are not finite included."""
        head = {"version": VERSION, "rank": self.rank, "time": round(time.time(), 3), "step": step, "kind": kind}
        try:
            self._file.write(as_json({**head, **fields}))
        except OSError as error:
            told = f"{self.path} cannot be written: {error.strerror or error}; free space, and the same command goes on"
            raise ConfigError(f"{told} from the last checkpoint") from error

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a rank's file; a line that is none (the rank was killed in it) is left out. Local."""
    with open(path, "rb") as file:
        for line in file:
            with suppress(ValueError):
                record = numbers(json.loads(line))
                if line.endswith(b"\n") and isinstance(record, dict):
                    yield record


def as_json(value: Any) -> bytes:
    """A line."""
    return json.dumps(finite(value), allow_nan=False).encode() + b"\n"


def finite(value: Any) -> Any:
    """With numbers that are not finite as strings."""
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def numbers(value: Any) -> Any:
    """The strings of ``finite`` as numbers."""
    if isinstance(value, dict):
        return {name: numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [numbers(each) for each in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


STATES = ("starting", "running", "evaluating", "saving", "stopped", "finished", "failed")
ENDED = STATES[4:]  # After these no heartbeat is to be expected.


class Eta:
    """Seconds to the end of ``total`` steps, by the mean time of a step since the first, which starts up, with the
    evaluations and saves between them. Times are in seconds of one clock. Local."""

    def __init__(self, total: int, step: int = 0) -> None:
        self.total, self.step = total, step
        self._first: tuple[int, float] | None = None
        self._last = 0.0

    def advance(self, now: float) -> None:
        self.step, self._last = self.step + 1, now
        self._first = self._first or (self.step, now)

    @property
    def step_seconds(self) -> float | None:
        """None before the second step."""
        step, since = self._first or (self.step, 0.0)
        return (self._last - since) / (self.step - step) if self.step > step else None

    def remaining(self, now: float) -> float | None:
        """Seconds from now to the end; None before the second step."""
        if (each := self.step_seconds) is None:
            return None
        return max(0.0, (self.total - self.step) * each - min(max(now - self._last, 0.0), each))


def usage(process: psutil.Process, device: torch.device) -> dict[str, float | int | None]:
    """CPU since the last call in percent of a core, memory; of the GPU (None without) its use and memory. Local.

    The loader's workers are processes of their own, and not in it.
    """
    found: dict[str, float | int | None] = {"cpu_percent": process.cpu_percent()}
    found["memory_bytes"] = process.memory_info().rss
    found |= dict.fromkeys(["device_percent", "device_memory_bytes", "device_total_bytes"])
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
    """The heartbeats of this rank. interval: seconds; 0: the first and the last alone. Local."""

    def __init__(
        self, folder: Path, world: World, interval: float, *, started: float, total: int, step: int = 0
    ) -> None:
        import psutil  # here, for those who only read

        self.path, self.interval, self._device = status_path(folder, world.rank), interval, world.device
        self._eta, self._process = Eta(total, step), psutil.Process()
        self._process.cpu_percent()  # later calls count from here
        self.said: dict[str, Any] = {
            "version": 1, "rank": world.rank, "world_size": world.size, "host": socket.gethostname(),
            "pid": os.getpid(), "device": str(world.device), "launcher": world.launcher, "started": started,
            "interval": interval, "total": total, "state": "starting", "message": "", "metrics": {}, "lr": None,
            "samples_per_second": None, "evaluations": {},
        }  # fmt: skip
        """Replaced as a whole, never changed: the thread reads it at any moment."""
        self._began = time.monotonic()
        if step:  # it goes on from a checkpoint: with the time of its earlier starts
            with suppress(OSError, ValueError, TypeError, KeyError):
                self._began -= float(json.loads(self.path.read_bytes())["elapsed"])
        self._ending, self._writing, self._told = threading.Event(), threading.Lock(), False

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

    @contextmanager
    def doing(self, state: str) -> Iterator[None]:
        """Something between steps: "evaluating", "saving". After an exception it stays what it was doing."""
        before = self.said["state"]
        self.say(state=state)
        yield
        self.say(state=before)

    def end(self, state: str, message: str = "") -> None:
        """The last heartbeat: "stopped", "finished" or "failed"."""
        self.say(state=state, message=message)
        self._ending.set()
        with self._writing:
            self._write()

    def _beat(self) -> None:
        while not self._ending.wait(self.interval):
            with self._writing:
                if not self._ending.is_set():  # else the process may end at any moment, and leave half a file
                    self._write()

    def _write(self) -> None:
        now, said = time.monotonic(), self.said
        eta = None if said["state"] in ENDED else self._eta.remaining(now)
        times = {"time": round(time.time(), 3), "elapsed": round(now - self._began, 3), "eta": eta}
        steps = {"step": self._eta.step, "step_seconds": self._eta.step_seconds}
        beside = self.path.with_name(f".{self.path.name}")
        try:
            used = usage(self._process, self._device)
            beside.write_bytes(as_json({**said, **times, **steps, "usage": used}))
            os.replace(beside, self.path)
        except OSError as error:  # the run is worth more than its status: it goes on, and looks stale
            if not self._told:
                print(f"{self.path} cannot be written, so this rank looks stale: {error}", file=sys.stderr, flush=True)
            self._told = True
