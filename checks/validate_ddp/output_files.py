"""Files that are written: whole or not at all, nothing beside them is left over, and no report over what is read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable

_SOURCES = (".py", ".pyi", ".pyw", ".ipynb", "pyproject.toml")
_MUST_BE_THE_FILE = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS)
"""What a folder says in which nothing new may be made, and a file that is mounted by itself."""


def objection(option: str, path: str, inputs: Iterable[str]) -> str | None:
    """Why the report of ``option`` must not go to ``path``: it would go over a file that is read, or a source.

    inputs: paths and other words; those that name no file do not count.
    """
    if not path or "\0" in path:
        return f"{option} `{path}`: is not a path"
    if os.path.isdir(path):
        return f"{option} {path}: is a folder; give the name of a file"
    if not os.path.isfile(path):
        return None  # new, or no plain file: a pipe, /dev/stdout
    if os.path.realpath(path).lower().endswith(_SOURCES):
        return f"{option} {path}: is a source file that is there already; give the report another name"
    if any(_same(path, each) for each in inputs):
        return f"{option} {path}: is read by this command; give the report another name"
    return None


def _same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # there is no such file
        return False


def write_report(path: str, data: bytes) -> None:
    """Writes a report: a file in one step, so that a full disk or a kill leaves the old one. Raises OSError.

    What is no plain file (a pipe, /dev/stdout) is written to, and so is a file that cannot be replaced where it lies.
    """
    if os.path.exists(path):
        if not os.path.isfile(path):
            return _write_to(path, data)
        try:
            return replace(path, data)
        except OSError as error:
            if error.errno not in _MUST_BE_THE_FILE:
                raise
        return _write_to(path, data)
    return replace(path, data)


def _write_to(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def replace(path: str, data: bytes) -> None:
    """Makes ``data`` the content of a file in one step: a reader sees the old one or the new one. Raises OSError.

    A symbolic link stays, and what it points to is replaced; of a file with several names the others keep the old
    content. Mode and, where allowed, owner stay as they are. No signal but SIGKILL comes between, and nothing is left
    over; after that one, a file named ``.validate-ddp-....tmp``.
    """
    target = os.path.realpath(path)
    with _Uninterrupted():
        temporary = os.path.join(os.path.dirname(target), f".validate-ddp-{os.urandom(8).hex()}.tmp")
        status = os.stat(target) if os.path.lexists(target) else None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            handle = os.open(temporary, flags, 0o666 if status is None else 0o600)
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                if status is not None:
                    _keep(file.fileno(), temporary, status)
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            raise


def _keep(handle: int, path: str, status: os.stat_result) -> None:
    mine = os.fstat(handle)
    if hasattr(os, "fchown") and (mine.st_uid, mine.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(handle, status.st_uid, status.st_gid)
        except PermissionError:
            pass  # only root may give files away; the content counts more than the owner
    if hasattr(os, "fchmod"):
        os.fchmod(handle, stat.S_IMODE(status.st_mode))  # last: a change of the owner takes bits away
    else:
        os.chmod(path, stat.S_IMODE(status.st_mode))


class _Uninterrupted:
    """Signals that would end this process wait until the file is whole; where the system cannot, they do not."""

    def __enter__(self) -> None:
        import signal

        self.before: set[signal.Signals | int] | None = None
        if hasattr(signal, "pthread_sigmask"):
            wait = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
            self.before = set(signal.pthread_sigmask(signal.SIG_BLOCK, wait))

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            import signal

            signal.pthread_sigmask(signal.SIG_SETMASK, self.before)
