"""Reads a file and decodes it as Python itself would, or says in one line why it cannot."""

from __future__ import annotations

import os
from stat import S_ISDIR, S_ISREG

from validate_ddp.source.text import REFUSED, UNREADABLE, Problem, Source, line_of_byte

SIZE_LIMIT = 20 * 1024 * 1024
"""Bytes. A larger file is data that happens to end in .py; its syntax tree would take gigabytes."""

_UTF_32 = (b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SLOW_CODECS = ("idna", "punycode")
"""Text codecs that take quadratic time, and in which nobody writes Python."""


def read(path: str) -> Source | Problem:
    """Read and decode the file at ``path``. Never raises for anything that a file can be or hold."""
    try:
        status = os.stat(path)
        if S_ISDIR(status.st_mode):
            return _unreadable(path, "is a folder, not a file")
        if not S_ISREG(status.st_mode):  # opening a named pipe would wait for ever
            return _unreadable(path, "is not a regular file; pipe it in with `-` instead")
        if status.st_size > SIZE_LIMIT:
            return _too_large(path, status.st_size)
        with open(path, "rb") as stream:
            data = stream.read((status.st_size or SIZE_LIMIT) + 1)  # a larger buffer would be cleared for nothing
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        return _unreadable(path, message)._replace(cause=REFUSED)
    return from_bytes(path, data)


def from_bytes(path: str, data: bytes) -> Source | Problem:
    """Decode ``data`` as the content of ``path``; a path that ends in .ipynb is read as a notebook."""
    if len(data) > SIZE_LIMIT:
        return _too_large(path, len(data))
    if path.endswith(".ipynb"):
        from validate_ddp.source import notebooks  # json is slow to import

        return notebooks.from_bytes(path, data)
    problem = _not_utf8_family(path, data)
    if problem:
        return problem
    encoding = _declared_encoding(data)
    marked = data.startswith(b"\xef\xbb\xbf")
    if encoding is None:
        return _decode_utf8(path, data, marked)
    return _decode_declared(path, data, encoding, marked)


def _not_utf8_family(path: str, data: bytes) -> Problem | None:
    """Say so where the bytes are UTF-16, UTF-32 or binary: Python refuses them all."""
    if data.startswith(_UTF_32):
        return _unreadable(path, "is UTF-32, which Python does not read; save it as UTF-8")
    if data.startswith(_UTF_16):
        return _unreadable(path, "is UTF-16, which Python does not read; save it as UTF-8")
    offset = data.find(b"\0")
    if offset < 0:
        return None
    pairs = len(data) // 2
    if pairs and max(data[0::2].count(0), data[1::2].count(0)) > 0.8 * pairs:
        return _unreadable(path, "looks like UTF-16 without a byte order mark; save it as UTF-8")
    line = line_of_byte(data, offset)
    start = max(data.rfind(b"\n", 0, offset), data.rfind(b"\r", 0, offset)) + 1
    column = len(data[start:offset].decode("utf-8", "replace")) + 1
    return Problem(path, line, column, "holds a NUL byte, so it is not Python text; remove it", UNREADABLE)


def _declared_encoding(data: bytes) -> str | None:
    """The name in a PEP 263 comment on the first two lines, None without one."""
    head = data[:1000]  # the declaration is short; a first line of megabytes need not be copied
    if b"coding" not in head:
        return None
    if head.count(b"coding") == 1 and (b"coding: utf-8" in head or b"coding=utf-8" in head or b"coding:utf-8" in head):
        return None  # the usual declaration states the default
    import re

    if head.startswith(b"\xef\xbb\xbf"):
        head = head[3:]
    declaration = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
    blank = re.compile(rb"[ \t\f]*(?:#|$)")
    for line in re.split(rb"\r\n|\r|\n", head, maxsplit=2)[:2]:
        found = declaration.match(line)
        if found:
            return found.group(1).decode("ascii", "replace")
        if not blank.match(line):  # a declaration counts on line 2 only below a comment or an empty line
            return None
    return None


def _decode_utf8(path: str, data: bytes, marked: bool) -> Source | Problem:
    try:
        return Source(path, data, data.decode("utf-8-sig" if marked else "utf-8"))
    except UnicodeDecodeError as error:
        offset = error.start + (3 if marked else 0)
        line = line_of_byte(data, offset)
        message = (
            f"is not UTF-8: byte 0x{data[offset]:02x} on line {line}; save it as UTF-8, or declare its encoding"
            " on the first line, such as `# -*- coding: latin-1 -*-`"
        )
        return Problem(path, line, 0, message, UNREADABLE)


def _decode_declared(path: str, data: bytes, encoding: str, marked: bool) -> Source | Problem:
    import codecs

    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError):
        return Problem(path, 1, 0, f"declares the unknown encoding `{encoding}`; declare utf-8", UNREADABLE)
    if codec.name in ("utf-8", "utf-8-sig"):
        return _decode_utf8(path, data, marked)
    if marked:
        message = f"begins with a UTF-8 byte order mark but declares the encoding `{encoding}`; remove one of them"
        return Problem(path, 1, 0, message, UNREADABLE)
    wide = codec.name.startswith(("utf-16", "utf-32"))  # a line that reads as ASCII cannot be in these
    if wide or not getattr(codec, "_is_text_encoding", True) or codec.name in _SLOW_CODECS:
        return Problem(path, 1, 0, f"declares `{encoding}`, which is no encoding of source text", UNREADABLE)
    try:
        text = data.decode(encoding)
        text.encode("utf-8")  # unicode_escape and utf-7 can make lone surrogates
    except UnicodeDecodeError as error:
        line = line_of_byte(data, error.start)
        message = f"declares the encoding `{encoding}`, but line {line} is not valid in it"
        return Problem(path, line, 0, message, UNREADABLE)
    except (UnicodeError, LookupError, ValueError) as error:
        return Problem(path, 1, 0, f"cannot be decoded as `{encoding}`: {_one_line(error)}", UNREADABLE)
    if "\0" in text:
        return Problem(path, 1, 0, f"holds a NUL character once decoded as `{encoding}`", UNREADABLE)
    return Source(path, data, text)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _too_large(path: str, size: int) -> Problem:
    megabytes = size / 1024 / 1024
    return _unreadable(path, f"is too large to check: {megabytes:.1f} MB, the limit is {SIZE_LIMIT // 1024**2} MB")


def _unreadable(path: str, message: str) -> Problem:
    return Problem(path, 0, 0, message, UNREADABLE)
