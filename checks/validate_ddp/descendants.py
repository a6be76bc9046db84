"""All processes that descend from this one, however far they have gone: adopted as orphans, and ended together.

On Linux a process may ask to be the *sub-reaper* of what descends from it: a process whose parent ends becomes its
child, whatever session, group or environment it has made for itself. So "it has no child left" is the same as
"nothing that it has started, at any remove, is left", and the kernel knows it without a race. Elsewhere an orphan is
the system's, and only the process groups that are known can be ended.

Standard library only, and little of it: the process that keeps the ranks of a rehearsal starts with it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable

ADOPTS = sys.platform.startswith("linux")
"""Whether orphans can be adopted here."""
_SET, _GET = 36, 37  # PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER
_TRACKER = b"multiprocessing.resource_tracker"
_FOLDER = "/dev/shm/"
_SEMAPHORE = b"/dev/shm/sem."
TRACKER_GRACE = 1.0
"""Seconds for multiprocessing's trackers, which free /dev/shm when all that they serve have ended."""
LIMIT = 10.0
"""Seconds after which a process that cannot be killed (another user's, or one that waits for a broken disk) is left."""

Reaped = Callable[[int, int], None]
"""Told of each child that has ended: its process id and its exit code, negative for a signal."""


def adopt(wanted: bool = True) -> bool:
    """Whether this process was a sub-reaper until now; from now on it is, or is not. Does nothing but on Linux."""
    if not ADOPTS:
        return False
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    was = ctypes.c_int(0)
    prctl(_GET, ctypes.byref(was), 0, 0, 0)
    prctl(_SET, int(wanted), 0, 0, 0)
    return bool(was.value)


def reap(reaped: Reaped) -> bool:
    """Takes leave of every child that has ended; whether there are others."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not pid:
            return True
        reaped(pid, os.waitstatus_to_exitcode(status))


def of(roots: Iterable[int]) -> set[int]:
    """The processes that descend from these now, without themselves; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for pid in _numbers():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    coming = list(roots)
    while coming:
        for pid in children.get(coming.pop(), ()):
            if pid not in found:
                found.add(pid)
                coming.append(pid)
    return found


def marked(mark: str) -> set[int]:
    """Processes with ``NAME=value`` in the environment that they were started with, but for this one."""
    found = set()
    for pid in _numbers():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark.encode() in file.read().split(b"\0") and pid != os.getpid():
                    found.add(pid)
        except OSError:
            continue
    return found


def _numbers() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def end_children(groups: Collection[int], reaped: Reaped, semaphores: Iterable[int] = ()) -> set[int]:
    """Kills all that descend from this process, a sub-reaper where there is such a thing; which they were.

    groups: process groups of its children, which are all that is known elsewhere. Multiprocessing's trackers come last.
    semaphores: those that processes held which may have ended since; what multiprocessing has left of them goes too.
    """
    seen: set[int] = set()
    held = set(semaphores)
    began = time.monotonic()
    while reap(reaped):
        waited = time.monotonic() - began
        if waited > LIMIT:
            break
        found = of([os.getpid()])
        seen |= found
        held |= semaphores_of(found)
        for pid in found:
            if waited > TRACKER_GRACE or not _is_tracker(pid):
                kill(pid)
        if not ADOPTS:
            kill_groups(groups)
        time.sleep(0.002)
    if not ADOPTS:
        kill_groups(groups)  # their leaders may have gone before them
    _forget(lambda name, inode: name.startswith("sem.mp-") and inode in held)
    return seen


def semaphores_of(pids: Iterable[int]) -> set[int]:
    """The named semaphores that these processes hold, by their inodes: what is mapped has the name under which it was
    made, which is gone. One that is killed between making its first and starting multiprocessing's tracker, which would
    free it, leaves it behind."""
    found = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                found |= {int(line.split(None, 5)[4]) for line in file if _SEMAPHORE in line}
        except (OSError, IndexError, ValueError):
            continue
    return found


def end_trees(roots: Collection[int]) -> set[int]:
    """Kills these processes, their sessions' groups, and what descends from them now; which they were.

    For a process that is not, or was not always, the one that adopts their orphans.
    """
    seen = of(roots) | set(roots)
    kill_groups(roots)
    for pid in seen:
        kill(pid)
    return seen


def kill_groups(leaders: Iterable[int], number: int = signal.SIGKILL) -> None:
    """A signal for all processes of these groups."""
    for pid in leaders:
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def kill(pid: int) -> None:
    """Ends a process, if it is there and may be."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return _TRACKER in file.read()
    except OSError:
        return False


def forget_shared_memory(pids: Collection[int]) -> None:
    """Removes what killed loaders left in shared memory; torch names it ``torch_<process id>_...``."""

    def is_theirs(name: str, inode: int) -> bool:
        parts = name.split("_")
        return len(parts) > 2 and parts[0] == "torch" and parts[1].isdigit() and int(parts[1]) in pids

    _forget(is_theirs)


def _forget(is_theirs: Callable[[str, int], bool]) -> None:
    try:
        with os.scandir(_FOLDER) as entries:
            found = [entry.path for entry in entries if is_theirs(entry.name, entry.inode())]
    except OSError:
        return
    for path in found:
        try:
            os.unlink(path)
        except OSError:
            continue
