"""The processes of a run: each rank in a session of its own, ended as a group, and none of their children left over."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

from validate_ddp.rehearse.parent import environment
from validate_ddp.rehearse.plan import Plan

Output = Callable[[int | None], int | None]
"""For a rank, the descriptor of its standard output and error; None for those of this process."""


class Processes:
    """The started ranks. ``ranks`` maps a process id to its rank; None for the one process that spawns its own."""

    def __init__(self, plan: Plan, folder: str, run: str, single: bool, output: Output = lambda rank: None) -> None:
        self.run = run
        self.single = single
        self.ranks: dict[int, int | None] = {}
        self.started: list[subprocess.Popen[bytes]] = []
        self.codes: dict[int, int] = {}
        port = environment.free_port()
        shared = environment.base(plan, folder, run, port)
        for rank in range(1 if single else plan.world_size):
            extra = {} if single else environment.of_rank(plan, rank, port)
            local = None if single else rank % plan.nproc_per_node
            screen = output(None if single else rank)
            try:
                process = subprocess.Popen(
                    environment.command(plan, local),
                    env={**shared, **extra},
                    start_new_session=True,
                    stdout=screen,
                    stderr=screen,
                )
            finally:
                if screen is not None:
                    os.close(screen)
            self.started.append(process)
            self.ranks[process.pid] = None if single else rank

    def poll(self) -> list[tuple[int, int]]:
        """Processes that have ended since the last call, as (process id, exit code, negative for a signal)."""
        ended = []
        for process in self.started:
            if process.pid not in self.codes:
                code = process.poll()
                if code is not None:
                    self.codes[process.pid] = code
                    ended.append((process.pid, code))
        return ended

    @property
    def running(self) -> list[int]:
        """Process ids of the ranks that have not ended."""
        return [process.pid for process in self.started if process.pid not in self.codes]

    def cpu_seconds(self, pid: int) -> float | None:
        """CPU time that a process has used; None where the system does not say."""
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return None

    def end(self, grace: float = 0.0) -> None:
        """Ends every process of this run. grace: seconds between SIGTERM and SIGKILL; 0 kills at once."""
        if grace:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and any(process.poll() is None for process in self.started):
                time.sleep(0.02)
        self._signal(signal.SIGKILL)
        for process in self.started:
            process.wait()
            self.codes.setdefault(process.pid, process.returncode)
        for pid in _marked(self.run):  # those that made a session of their own, as daemons do
            _kill(pid)
        _forget_shared_memory({process.pid for process in self.started})

    def _signal(self, number: int) -> None:
        for process in self.started:
            try:
                os.killpg(process.pid, number)
            except (ProcessLookupError, PermissionError):
                continue


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _marked(run: str) -> Iterator[int]:
    """Processes with the mark of this run in their environment."""
    mark = f"VALIDATE_DDP_RUN={run}".encode()
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        yield int(name)
            except OSError:
                continue


def _forget_shared_memory(pids: set[int]) -> None:
    """Removes what killed loaders left in shared memory; torch names it ``torch_<process id>_...``."""
    try:
        names = os.listdir("/dev/shm")
    except OSError:
        return
    for name in names:
        parts = name.split("_")
        if len(parts) > 2 and parts[0] == "torch" and parts[1].isdigit() and int(parts[1]) in pids:
            try:
                os.unlink(os.path.join("/dev/shm", name))
            except OSError:
                continue
