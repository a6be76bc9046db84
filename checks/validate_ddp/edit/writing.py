"""Writes a changed text back: in the file's own encoding, atomically, and only where the user has sent us."""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Sequence


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
    """Replaces a file's content in one step, see ``output_files.replace``. Raises Unwritable."""
    from validate_ddp.output_files import replace

    if not os.access(path, os.W_OK):
        raise Unwritable("it is not writable")
    try:
        replace(path, data)
    except OSError as error:
        raise Unwritable(f"it cannot be written: {error.strerror or error}") from error


def is_led_out(path: str, targets: Sequence[str]) -> bool:
    """Whether a link leads from ``path`` out of the folders that the user has given: there nothing may be changed.

    A file that is named itself may be a link to anywhere. What lies in none of the folders is a module that a script of
    theirs imports: it counts as led out where any link is on the way to it.
    """
    absolute, real = os.path.abspath(path), os.path.realpath(path)
    given = [os.path.abspath(target) for target in targets]
    if absolute in given:
        return False
    folders = [target if os.path.isdir(target) else os.path.dirname(target) for target in given]
    holding = [folder for folder in folders if _within(absolute, folder)]
    if holding:
        return not any(_within(real, os.path.realpath(folder)) for folder in folders)
    above = max((_common(folder, absolute) for folder in folders), key=len, default="")
    return os.path.join(os.path.realpath(above), os.path.relpath(absolute, above or ".")) != real


def _within(path: str, folder: str) -> bool:
    return _common(path, folder) == folder


def _common(path: str, other: str) -> str:
    try:
        return os.path.commonpath((path, other))
    except ValueError:  # on two drives
        return ""
