"""Writes a changed text back: in the file's own encoding, atomically, with the mode of the file."""

from __future__ import annotations

import io
import os
import tokenize


class Unwritable(Exception):
    """A file that cannot be written back as it should be; the message says why, in words for the user."""


def encode(path: str, data: bytes, old: str, new: str) -> bytes:
    """The bytes of a file whose text ``old``, as ``source`` read it from ``data``, has become ``new``.

    Keeps the encoding, a byte order mark, and of a notebook everything but the cells that changed. Raises Unwritable
    where the bytes would not come out as they were apart from the change.
    """
    if path.endswith(".ipynb"):
        return _notebook(path, data, old, new)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        if old.encode(encoding) != data:
            raise Unwritable("its encoding cannot be kept, or it has changed meanwhile")
        return new.encode(encoding)
    except (SyntaxError, LookupError, UnicodeError) as error:
        raise Unwritable("its encoding cannot be kept") from error


def _notebook(path: str, data: bytes, old: str, new: str) -> bytes:
    from validate_ddp.source import notebooks
    from validate_ddp.source.text import Source

    source = notebooks.from_bytes(path, data)
    if not isinstance(source, Source) or source.text != old or source.cells is None:
        raise Unwritable("it has changed meanwhile")
    try:
        return notebooks.splice(data, new, source.cells)
    except ValueError as error:
        raise Unwritable(f"the notebook cannot be put together: {error}") from error


def write_whole(path: str, data: bytes) -> None:
    """Replaces a file's content in one step: a reader sees the old one or the new one. Raises Unwritable.

    A symbolic link stays, and what it points to is replaced; mode and, where allowed, owner stay as they are.
    """
    import tempfile

    target = os.path.realpath(path)
    if not os.access(target, os.W_OK):
        raise Unwritable("it is not writable")
    temporary = None
    try:
        status = os.stat(target)
        handle, temporary = tempfile.mkstemp(prefix=".validate-ddp-", dir=os.path.dirname(target))
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, status.st_mode & 0o7777)
        _keep_owner(temporary, status)
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise Unwritable(f"it cannot be written: {error.strerror or error}") from error


def _keep_owner(path: str, status: os.stat_result) -> None:
    if not hasattr(os, "chown"):
        return
    mine = os.stat(path)
    if (mine.st_uid, mine.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.chown(path, status.st_uid, status.st_gid)
        except PermissionError:
            return  # only root may give files away; the content counts more than the owner
