"""Keeps JSON values on disk between runs: atomic, bounded, and silently off where it cannot write."""

from __future__ import annotations

import os
import sys
from typing import Any

try:
    from _blake2 import blake2b  # hashlib costs ten times as much to import
except ImportError:  # an interpreter built without it
    from hashlib import blake2b

SIZE_LIMIT = 256 * 1024 * 1024
"""Bytes that the entries may take; beyond it the oldest go."""

_PRUNE_INTERVAL = 3600.0
_STALE = 3600.0
"""Seconds. A temporary file that old has lost its process."""

_TAG = "CACHEDIR.TAG"
_TAG_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# This folder holds the cache of validate-ddp and may be deleted.\n"
)
_OTHER_HALVES = frozenset(("rehearse", "testing", "report", "__pycache__"))
"""Folders of the package of whose work nothing is kept."""
_HEX = frozenset("0123456789abcdef")


def digest(*parts: bytes | str) -> str:
    """40 hex digits that stand for the parts; ("ab", "c") and ("a", "bc") differ, "a" and b"a" do not."""
    hashed = blake2b(digest_size=20)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little"))
        hashed.update(data)
    return hashed.hexdigest()


def default_directory() -> str | None:
    """Where the cache lies unless told otherwise: ``VALIDATE_DDP_CACHE_DIR``, else the system's place for caches.

    None where no home is known.
    """
    told = os.environ.get("VALIDATE_DDP_CACHE_DIR")
    if told:
        return os.path.abspath(told)
    name = "validate-ddp"
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared and os.path.isabs(shared):  # the specification says to ignore a relative one
        return os.path.join(shared, name)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return os.path.join(local, name, "Cache") if local else None
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return None
    caches = os.path.join("Library", "Caches") if sys.platform == "darwin" else ".cache"
    return os.path.join(home, caches, name)


class Cache:
    """JSON values by kind and key, in ``directory/<version>/<kind>/<xx>/<key>.json``.

    Several processes may share a folder: an entry is written whole or not at all. Whatever is not an entry that this
    version wrote under this kind and key is a miss, and so is a file that somebody else owns or may write: the check of
    an entry needs no secret, and an entry can say that nothing was found. After the first failure to write nothing more
    is written. directory: None for no cache.
    """

    __slots__ = ("_directory", "_root", "_writable", "_written")

    def __init__(self, directory: str | None) -> None:
        from validate_ddp import __version__

        # Syntax trees differ between Pythons, in places and in what is an error.
        version = f"{__version__}-py{sys.version_info[0]}.{sys.version_info[1]}{_edited()}"
        self._directory = directory
        self._root = os.path.join(directory, version) if directory else ""
        self._writable = directory is not None
        self._written = 0

    def get(self, kind: str, key: str) -> Any | None:
        """The value put under ``kind`` and ``key``, None without one. Tuples come back as lists."""
        if self._directory is None:
            return None
        path = self._path(kind, key)
        try:
            with open(path, "rb") as stream:
                if not _is_own(os.fstat(stream.fileno())):
                    return None
                check, _, payload = stream.read().partition(b"\n")
        except OSError:
            return None
        if check != _check(kind, key, payload):
            return None
        import json

        try:
            return json.loads(payload)
        except (ValueError, RecursionError):
            return None

    def put(self, kind: str, key: str, value: Any) -> None:
        """Keep ``value``: what JSON can hold, else TypeError. Any failure of the disk is silent."""
        path = self._path(kind, key)
        if not self._writable:
            return
        import json

        try:
            payload = json.dumps(value, separators=(",", ":")).encode("ascii")
        except (ValueError, RecursionError):  # nested too deeply, or a number of thousands of digits
            return
        self._write(path, _check(kind, key, payload) + b"\n" + payload)

    def prune(self, limit: int = SIZE_LIMIT) -> None:
        """Delete the oldest entries, of all versions, until at most ``limit`` bytes are left; and stale leftovers.

        Touches only a folder that a cache has marked as its own, there only files named as entries are, and follows no
        link.
        """
        if self._directory is None or not os.path.isfile(os.path.join(self._directory, _TAG)):
            return
        import time

        now = time.time()
        entries: list[tuple[float, int, str]] = []
        for path, status in _files(self._directory):
            if path.endswith(".json"):
                entries.append((status.st_mtime, status.st_size, path))
            elif now - status.st_mtime > _STALE:
                _remove(path)
        size = sum(entry[1] for entry in entries)
        for _, length, path in sorted(entries):
            if size <= limit:
                break
            _remove(path)
            size -= length

    def _path(self, kind: str, key: str) -> str:
        if not (kind.isidentifier() and len(key) > 2 and _HEX.issuperset(key)):
            raise ValueError(f"not a kind and a digest: {kind!r}, {key!r}")
        return os.path.join(self._root, kind, key[:2], key + ".json")

    def _write(self, path: str, content: bytes) -> None:
        temporary = f"{path[:-5]}.{os.getpid()}.{self._written}.tmp"
        self._written += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            try:
                handle = os.open(temporary, flags, 0o600)
            except FileNotFoundError:
                self._prepare()
                os.makedirs(os.path.dirname(path), exist_ok=True)
                handle = os.open(temporary, flags, 0o600)
            with open(handle, "wb") as stream:
                stream.write(content)
            os.replace(temporary, path)
        except OSError:
            self._writable = False
            _remove(temporary)
            return
        if self._written % 256 == 0 or path.endswith("00.json"):
            self._prune_sometimes()

    def _prepare(self) -> None:
        """Mark the folder as a cache, for backup programs, for git, and for ``prune``."""
        assert self._directory is not None
        if os.path.isdir(self._directory) and os.listdir(self._directory):
            return
        os.makedirs(self._directory, exist_ok=True)
        for name, text in ((_TAG, _TAG_TEXT), (".gitignore", "*\n")):
            with open(os.path.join(self._directory, name), "w", encoding="ascii") as stream:
                stream.write(text)

    def _prune_sometimes(self) -> None:
        """At most once an hour over all processes, told by the time of the mark."""
        import time

        assert self._directory is not None
        stamp = os.path.join(self._directory, ".pruned")
        try:
            if time.time() - os.stat(stamp).st_mtime < _PRUNE_INTERVAL:
                return
        except OSError:
            pass  # never pruned yet
        try:
            # Nothing is cut off, and no link is followed: the folder may be one that a project has brought along.
            os.close(os.open(stamp, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
            os.utime(stamp)
        except OSError:
            return
        self.prune()


def _is_own(status: os.stat_result) -> bool:
    """Whether nobody but this user could have written a file. Windows does not tell."""
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def _edited() -> str:
    """What tells the states of a checkout apart, which is edited under one version; empty for an installed package.

    The newest time of a source file: some two hundred of them, in two milliseconds.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not os.path.exists(os.path.join(os.path.dirname(os.path.dirname(package)), "pyproject.toml")):
        return ""
    newest = 0
    folders = [package]
    while folders:
        for entry in _listing(folders.pop()):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _OTHER_HALVES:
                    folders.append(entry.path)
            elif entry.name.endswith(".py"):
                newest = max(newest, entry.stat().st_mtime_ns)
    return f"-{newest:x}"


def _check(kind: str, key: str, payload: bytes) -> bytes:
    return digest(kind, key, payload)[:16].encode("ascii")


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # another process was faster, or it never was


def _files(directory: str) -> list[tuple[str, os.stat_result]]:
    """Entries and temporary files with their status: plain files at depth four, named by a digest below its start."""
    found: list[tuple[str, os.stat_result]] = []
    folders = [directory]
    for _ in range(3):
        inner = [entry for folder in folders for entry in _listing(folder)]
        folders = [entry.path for entry in inner if entry.is_dir(follow_symlinks=False)]
    for folder in folders:
        start = os.path.basename(folder)
        for entry in _listing(folder):
            stem, _, ending = entry.name.partition(".")
            known = ending == "json" or ending.endswith(".tmp")
            if known and len(start) == 2 and stem.startswith(start) and _HEX.issuperset(stem):
                try:
                    if entry.is_file(follow_symlinks=False):
                        found.append((entry.path, entry.stat(follow_symlinks=False)))
                except OSError:
                    continue  # gone meanwhile
    return found


def _listing(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
