"""The folder of a run's checkpoints: what each holds byte by byte, which counts, what is kept, one job at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..core.save import CheckpointError as CheckpointError
from ..core.save import replace, sync

NAME = "manifest.json"
VERSION = 1  # Of the layout of a checkpoint; what an older reader would misread makes it 2.


@contextmanager
def told(path: object, what: str = "cannot be read", hint: str = "") -> Iterator[None]:
    """Within: what the file system refuses is a ``CheckpointError`` in one line. Local."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} {what}: {error.strerror or error}{hint}") from error


def _entry(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        checksum = hashlib.sha256()
        while part := file.read(1 << 20):
            checksum.update(part)
    return {"bytes": path.stat().st_size, "sha256": checksum.hexdigest()}


def seal(folder: Path, step: int, world_size: int) -> None:
    """Writes the manifest of the files that are in the folder now. Local."""
    files = {path.name: _entry(path) for path in sorted(folder.iterdir())}
    manifest = {"version": VERSION, "step": step, "world_size": world_size, "files": files}
    (folder / NAME).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def verified(folder: Path) -> dict[str, Any]:
    """The manifest; ``CheckpointError`` names the first file that is not what was written. Local; reads all files."""
    path = folder / NAME
    with told(path):
        content = path.read_bytes()
    try:
        found: dict[str, Any] = json.loads(content)
        if found["version"] != VERSION:
            raise CheckpointError(f"{path} has version {found['version']!r} and this program reads {VERSION}")
        for name, expected in found["files"].items():
            file = folder / Path(name).name
            with told(file):
                if (size := file.stat().st_size) != expected["bytes"]:
                    raise CheckpointError(f"{file} is damaged: {size} bytes, {expected['bytes']} were written")
                if _entry(file) != expected:
                    raise CheckpointError(f"{file} is damaged: its SHA-256 is not that of what was written")
        int(found["step"])
        return found
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from error


class RunLock:
    """RUN/.lock, held from the making to ``release`` or the end of the process, however it ends. Rank zero only.

    ``CheckpointError`` where another process holds it, or where the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        with told(f"the run directory {folder}", "cannot be written", "; free space, or give another one as run_dir"):
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip() or "another process"
                os.close(self._descriptor)
                hint = "wait for that job, or give another run_dir"
                raise CheckpointError(f"the run directory {folder} is in use by {holder}; {hint}") from None
            except OSError as error:
                print(f"{folder} is on a file system without locks ({error}): let one job use it", file=sys.stderr)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        _held.add(self._descriptor)

    def release(self) -> None:
        """Gives it back; the file stays, because removing it would let two jobs lock two files of one name."""
        if self._descriptor in _held:
            _held.discard(self._descriptor)
            os.close(self._descriptor)


_held: set[int] = set()


def _forget() -> None:
    """In a forked child: loader workers outlive a killed rank by moments, and any open copy keeps the lock."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget)


def step_of(path: Path) -> int | None:
    """The step that a checkpoint's name tells; None if it is no checkpoint's name."""
    found = re.fullmatch(r"step-(\d{8,})", path.name)
    return int(found[1]) if found else None


def latest(run: Path) -> Path | None:
    """The checkpoint that was saved last in a run directory; None where there is none. Local."""
    return next(iter(Directory(run / "checkpoints").all()), None)


class Directory:
    """RUN/checkpoints. What counts is the highest step; `latest` says it to people and scripts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[Path]:
        """The checkpoints, the latest first."""
        with told(self.folder), suppress(FileNotFoundError):
            found = [(step, path) for path in self.folder.iterdir() if (step := step_of(path)) is not None]
            return [path for _, path in sorted(found, reverse=True)]
        return []

    def named(self, pointer: str) -> str | None:
        """What `latest` or `best` says; None where it is not there."""
        path = self.folder / pointer
        return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None

    def write(self, step: int, world_size: int, fill: Callable[[Path], None]) -> Path:
        """A new checkpoint, on the disk before it gets its name; ``CheckpointError`` where it fails. Rank zero only."""
        final = self.folder / f"step-{step:08}"
        beside = self.folder / f".{final.name}.{os.getpid()}"
        try:
            if final.exists():
                raise CheckpointError(f"{final} is there already; nothing was overwritten")
            beside.mkdir(parents=True)
            fill(beside)
            seal(beside, step, world_size)
            for path in [*beside.iterdir(), beside]:
                sync(path)
            os.rename(beside, final)
            sync(self.folder)
            self.point("latest", step)
        except OSError as error:
            before = next(iter(self.all()), None)
            left = f"the latest checkpoint is {before.name}, as it was" if before else "there is no other checkpoint"
            raise CheckpointError(f"{final} could not be saved: {error.strerror or error}; {left}") from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return final

    def point(self, pointer: str, step: int | None) -> None:
        """Has `latest` or `best` name the checkpoint of this step, or none. Rank zero only."""
        path, name = self.folder / pointer, f"step-{step or 0:08}"
        if step is None or not (self.folder / name).is_dir():
            path.unlink(missing_ok=True)
        elif self.named(pointer) != name:
            replace(path, lambda beside: beside.write_text(f"{name}\n"))

    def prune(self, keep: int) -> None:
        """Removes all but the last ``keep`` checkpoints and the best. Rank zero only.

        A checkpoint loses its name before its files, so that none is ever seen with a part of them.
        """
        for path in self.all()[keep:]:
            if path.name != self.named("best"):
                doomed = path.with_name(f".{path.name}.removed")
                os.rename(path, doomed)
                shutil.rmtree(doomed, ignore_errors=True)

    def clean(self) -> None:
        """Removes what killed jobs left half written. Rank zero only, while it holds the run's lock."""
        for path in self.folder.glob(".*"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def set_aside(self, step: int) -> list[str]:
        """Renames the checkpoints after ``step``, which the run will write anew; returns the new names. Rank zero."""
        moved = []
        for path in self.all():
            if (step_of(path) or 0) > step:
                taken = len(list(self.folder.glob(f"{path.name}.aside*")))
                moved.append(f"{path.name}.aside{taken + 1}")
                os.rename(path, self.folder / moved[-1])
        return moved

    def candidates(self, resume: str) -> list[Path]:
        """The checkpoints to try, in order, for a setting of `resume`; none: the run begins anew.

        ``CheckpointError`` where "none" meets a run with checkpoints, or a path is no checkpoint.
        """
        found = self.all()
        if resume == "none" and found:
            hint = 'give a new run_dir, or resume "auto"'
            raise CheckpointError(f'{self.folder} has checkpoints and checkpoint.resume is "none"; {hint}')
        if resume in ("auto", "none"):
            return found
        path = Path(resume)
        path = path if (path / NAME).exists() else latest(path) or path
        if step_of(path) is None or not path.is_dir():
            raise CheckpointError(f"checkpoint.resume is {resume}, which is no checkpoint and no run with one")
        if path.parent.resolve() == self.folder.resolve() or not found:
            return [path]
        print(f"{self.folder} has checkpoints of its own, which come before {resume}", file=sys.stderr)
        return found
