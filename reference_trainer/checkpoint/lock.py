"""One job a run directory: two that save into one folder would each prune what the other relies on."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from pathlib import Path

from .manifest import CheckpointError

__all__ = ["RunLock"]

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_held: set[int] = set()


class RunLock:
    """RUN/.lock, held from the making to ``release`` or the end of the process, however it ends. Rank zero only.

    Raises ``CheckpointError`` where another process holds it, naming host and process, or where the folder cannot be
    written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CheckpointError(
                f"the run directory {folder} cannot be written: {error.strerror or error}; give another one as run_dir"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip() or "another process"
                os.close(self._descriptor)
                raise CheckpointError(
                    f"the run directory {folder} is in use by {holder}; wait for that job, or give another run_dir"
                ) from error
            print(f"{folder} is on a file system without locks: see to it that one job uses it", file=sys.stderr)
        _held.add(self._descriptor)
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except OSError as error:  # a full disk
            self.release()
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror or error}; free space") from error

    def release(self) -> None:
        """Gives it back; the file stays, because removing it would let two jobs lock two files of one name."""
        if self._descriptor in _held:
            _held.discard(self._descriptor)
            os.close(self._descriptor)


def _forget() -> None:
    """In a forked child: loader workers outlive a killed rank by seconds, and any open copy keeps the lock."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
