"""What each rank says of itself: RUN/status/rank00000.json, written anew every few seconds by a thread. Torch-free."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..records import finite

if TYPE_CHECKING:
    import torch

    from ..launch import World

STATES = ("starting", "running", "evaluating", "saving", "stopped", "finished", "failed")
ENDED = STATES[4:]  # After these no heartbeat is to be expected.
_MOST_OFTEN = 0.5  # Seconds from one write to the next: evaluations and intervals may be shorter than that.


class Eta:
    """Seconds to the end of ``total`` steps, by an exponentially weighted mean of their times. Local.

    Without the first step, which waits for workers, kernels and caches. Times are in seconds of one clock.
    """

    def __init__(self, total: int, *, step: int = 0, weight: float = 0.02) -> None:
        self.total, self.step, self._weight = total, step, weight
        self._since: float | None = None
        self._sum = self._of = 0.0

    def advance(self, now: float) -> None:
        if self._since is not None:
            self._sum += self._weight * (now - self._since - self._sum)
            self._of += self._weight * (1.0 - self._of)  # at first the plain mean
        self.step, self._since = self.step + 1, now

    def skip(self, seconds: float) -> None:
        """Leaves an evaluation or a save out of the step that is under way."""
        self._since = None if self._since is None else self._since + seconds

    @property
    def step_seconds(self) -> float | None:
        """Of a step, smoothed; None before the second."""
        return self._sum / self._of if self._of else None

    def remaining(self, now: float) -> float | None:
        """Seconds from now to the end of the last step; None before the second step."""
        each, since = self.step_seconds, self._since
        if each is None or since is None:
            return None
        return max(0.0, (self.total - self.step) * each - min(max(now - since, 0.0), each))


class Usage:
    """What this process uses; its loader's workers are processes of their own, and not in it. Local."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._cpu, self._time = device, time.process_time(), time.monotonic()

    def now(self) -> dict[str, float | int | None]:
        """CPU since the last call in percent of a core, memory; of the GPU (None without) its use and memory."""
        cpu, now, found = time.process_time(), time.monotonic(), dict[str, float | int | None]()
        found["cpu_percent"] = round(100 * (cpu - self._cpu) / max(now - self._time, 1e-9), 1)
        found |= {"memory_bytes": _resident(), "device_percent": None}
        found |= {"device_memory_bytes": None, "device_total_bytes": None}
        self._cpu, self._time = cpu, now
        if self._device.type == "cuda":
            import torch

            found["device_memory_bytes"] = int(torch.cuda.memory_reserved(self._device))
            found["device_total_bytes"] = int(torch.cuda.get_device_properties(self._device).total_memory)
            try:
                found["device_percent"] = int(torch.cuda.utilization(self._device))
            except Exception:  # noqa: BLE001 - without nvidia-ml-py, or for a slice of a GPU, it is not known
                found["device_percent"] = None
        return found


def _resident() -> int:
    """Bytes of this process in memory now; where only its peak is told (not Linux), that."""
    table = Path("/proc/self/statm")
    return int(table.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if table.exists() else peak_memory()


def peak_memory() -> int:
    """The most bytes of memory that this process has had. Local."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def status_path(folder: Path, rank: int) -> Path:
    return folder / "status" / f"rank{rank:05}.json"


_alive: weakref.WeakSet[Heartbeat] = weakref.WeakSet()


def last_words(cause: str) -> None:
    """Has this process's heartbeat say that it leaves because of another rank, if there is one. Local; any thread."""
    for each in list(_alive):
        each.say(cause=cause)
        each.end("failed", each.said["message"] or f"leaving, because {cause}")


class Heartbeat:
    """The heartbeats of this rank. interval: seconds; 0: the first and the last alone. Local."""

    def __init__(
        self, folder: Path, world: World, *, interval: float, started: float, total: int, step: int = 0
    ) -> None:
        self.path, self.interval = status_path(folder, world.rank), interval
        self._eta, self._usage = Eta(total, step=step), Usage(world.device)
        self._head = {
            "version": 1, "rank": world.rank, "world_size": world.size, "host": socket.gethostname(),
            "pid": os.getpid(), "device": str(world.device), "launcher": world.launcher, "started": started,
            "interval": interval, "total": total,
        }  # fmt: skip
        self.said: dict[str, Any] = {
            "state": "starting", "message": "", "cause": "", "metrics": {}, "lr": None, "samples_per_second": None,
            "evaluations": {},
        }  # fmt: skip
        """Replaced as a whole, never changed: the thread reads it at any moment."""
        self._began = time.monotonic()
        self._wake, self._ending = threading.Event(), threading.Event()
        self._writing, self._told = threading.Lock(), False

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _alive.add(self)
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
        self._eta.skip(time.monotonic() - began)
        self.say(state=before)

    def end(self, state: str, message: str = "") -> None:
        """The last heartbeat: "stopped", "finished" or "failed"."""
        self.said = {**self.said, "state": state, "message": message}
        self._ending.set()
        self._wake.set()
        if self in _alive:
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
        steps = {"step": self._eta.step, "step_seconds": self._eta.step_seconds, "usage": self._usage.now()}
        beside = self.path.with_name(f".{self.path.name}")
        try:
            beside.write_text(json.dumps(finite({**self._head, **said, **times, **steps}), allow_nan=False) + "\n")
            os.replace(beside, self.path)
        except OSError as error:  # the run is worth more than its status: it goes on, and looks stale
            if not self._told:
                print(f"{self.path} cannot be written, so this rank looks stale: {error}", file=sys.stderr, flush=True)
            self._told = True
        finally:
            self._writing.release()
