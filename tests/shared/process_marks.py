"""Which processes are alive, and which bear a mark: what tests look for that start processes and end them."""

from __future__ import annotations

import os
import time


def alive(pid: int | str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def alive_after(seconds: float, *pids: int | str) -> list[int | str]:
    """Those of them that are there after so long."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def bearing(*marks: str) -> list[str]:
    """Other processes with one of these on their command line or in their environment; each word of both ends in 0."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as line, open(f"/proc/{name}/environ", "rb") as environment:
                    words = line.read()
                    known = words + environment.read() + b"\0"
            except OSError:
                continue
            if any(mark.encode() in known for mark in marks):
                found.append(f"{name} {words.decode(errors='replace')}")
    return found


def bearing_after(seconds: float, *marks: str) -> list[str]:
    """Those that are left after so long."""
    deadline = time.monotonic() + seconds
    while (left := bearing(*marks)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def shared_memory() -> set[str]:
    """What torch and multiprocessing hold in shared memory."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "sem.mp-", "psm_"))}
