"""Decoding: what Python reads is read alike, what it refuses is refused in one line."""

from __future__ import annotations

import ast
import os
import tokenize
from io import BytesIO
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from validate_ddp.source import decoding
from validate_ddp.source.decoding import from_bytes, read
from validate_ddp.source.text import Problem, Source, line_of_byte, split_lines

if TYPE_CHECKING:
    from pathlib import Path


def decoded(data: bytes) -> str:
    source = from_bytes("a.py", data)
    assert isinstance(source, Source), source
    assert source.data == data and source.cells is None
    return source.text


def refused(data: bytes, path: str = "a.py") -> Problem:
    problem = from_bytes(path, data)
    assert isinstance(problem, Problem), problem
    assert problem.kind == "unreadable" and problem.path == path
    assert problem.message and "\n" not in problem.message
    return problem


# Decoding


def test_utf8_is_the_default() -> None:
    assert decoded("x = 'é€😀'".encode()) == "x = 'é€😀'"
    assert decoded(b"") == ""


def test_byte_order_mark_is_no_part_of_the_text() -> None:
    assert decoded(b"\xef\xbb\xbfx = 1\n") == "x = 1\n"
    assert decoded(b"\xef\xbb\xbf# coding: utf-8\n") == "# coding: utf-8\n"


@pytest.mark.parametrize(
    "head",
    [
        b"# -*- coding: latin-1 -*-\n",
        b"#!/usr/bin/env python\n# vim: set fileencoding=iso-8859-15 :\n",
        b"\n# coding=cp1252\n",
        b" \t\x0c# coding:latin-1\r",
        b"# a comment\r\n# coding: latin-1\r\n",
        b"# coding: utf-8 is not our coding: latin-1\n",
    ],
)
def test_declared_encoding_on_the_first_two_lines_is_used_as_python_uses_it(head: bytes) -> None:
    data = head + b"x = '\xe9'\n"
    if b"utf-8" in head:
        assert "0xe9" in refused(data).message
    else:
        assert decoded(data).endswith("x = 'é'\n")


@pytest.mark.parametrize(
    "head",
    [b"\n\n# coding: latin-1\n", b"x = 1\n# coding: latin-1\n", b"'''\n# coding: latin-1\n'''\n", b"coding: latin-1\n"],
)
def test_declaration_elsewhere_does_not_count(head: bytes) -> None:
    assert "UTF-8" in refused(head + b"# \xe9\n").message


def test_undecodable_byte_is_told_with_its_line_and_a_remedy() -> None:
    problem = refused(b"x = 1\r\ny = 2\rz = '\xe9'\n")
    assert problem.line == 3
    assert "0xe9" in problem.message and "coding" in problem.message
    assert refused(b"\xef\xbb\xbf\n\xff").line == 2
    assert refused(b"# coding: ascii\n\n\xe9").line == 3


@pytest.mark.parametrize("name", [b"klingon", b"rot13", b"hex", b"zlib", b"idna", b"punycode", b"utf-16", b"undefined"])
def test_encoding_that_is_none_for_source_is_refused(name: bytes) -> None:
    assert name.decode() in refused(b"# coding: " + name + b"\nx = 1\n").message


def test_half_characters_out_of_an_escaping_encoding_are_refused() -> None:
    refused(b"# coding: unicode_escape\nx = '\\ud800'\n")
    refused(b"# coding: unicode_escape\nx = '\\x00'\n")


def test_mark_and_another_declared_encoding_contradict() -> None:
    assert "latin-1" in refused(b"\xef\xbb\xbf# coding: latin-1\n").message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_encodings_are_named(encoding: str) -> None:
    message = refused("import torch\nx = 1\n".encode(encoding)).message
    assert ("UTF-32" if encoding == "utf-32" else "UTF-16") in message and "UTF-8" in message


def test_nul_byte_is_told_with_its_place() -> None:
    problem = refused("x = 1\n'é' \0\n".encode())
    assert (problem.line, problem.column) == (2, 5)
    assert "NUL" in problem.message


@given(st.binary(max_size=60))
@example(b"# coding:\xff\n")
@example(b"#coding:utf8\n\xff")
@example(b"# coding: utf-7\n+AAA-")
def test_any_bytes_give_text_or_a_problem_and_text_only_where_python_reads_it(data: bytes) -> None:
    found = from_bytes("a.py", data)
    if isinstance(found, Problem):
        assert found.kind == "unreadable"
        return
    encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
    if b"\r" not in data:  # tokenize does not end a line at it, the parser does
        assert found.text == data.decode(encoding)


@given(
    st.sampled_from([b"", b"# coding: ", b"\n#coding=", b"#x\n# vim: fileencoding="]),
    st.text("abc-_18 utflatinmacwindows"),
)
def test_any_declared_name_gives_text_or_a_problem(head: bytes, name: str) -> None:
    assert from_bytes("a.py", head + name.encode() + b"\nx = '\xc3\xa9'\n").path == "a.py"


# Lines


def test_only_line_feeds_and_carriage_returns_end_a_line() -> None:
    assert split_lines("a\rb\r\nc\nd") == ["a\r", "b\r\n", "c\n", "d"]
    assert split_lines("a\x0cb\x0bc\x1cd\x85e\u2028f\n") == ["a\x0cb\x0bc\x1cd\x85e\u2028f\n"]
    assert split_lines("") == []
    assert split_lines("\r\r\n\n\r") == ["\r", "\r\n", "\n", "\r"]


@given(st.lists(st.sampled_from(["x", "\n", "\r", "\r\n", "\x0c", "\x1c", "\u2028", "é"]), max_size=12).map("".join))
def test_lines_are_counted_as_the_parser_counts_them(within: str) -> None:
    code = f"'''{within}'''\nlast"
    data = code.encode()
    node = ast.parse(decoded(data)).body[-1]
    lines = split_lines(code)
    assert "".join(lines) == code
    assert node.lineno == len(lines) == line_of_byte(data, len(data) - 1)
    assert lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset] == b"last"


# Files


def test_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"x = 1\r\n")
    assert read(str(file)) == Source(str(file), b"x = 1\r\n", "x = 1\r\n", None)


def test_what_is_no_readable_file_is_a_problem(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    os.symlink("loop.py", tmp_path / "loop.py")
    (tmp_path / "folder.py").mkdir()
    for name in ("missing.py", "folder.py", "pipe.py", "loop.py", "a\0.py", "x" * 300 + ".py"):
        problem = read(str(tmp_path / name))
        assert isinstance(problem, Problem) and problem.kind == "unreadable", name
        assert problem.message and "\n" not in problem.message


def test_file_over_the_limit_is_refused_without_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SIZE_LIMIT", 2 * 1024 * 1024)
    file = tmp_path / "a.py"
    with open(file, "wb") as stream:
        stream.truncate(2 * 1024 * 1024 + 1)
    problem = read(str(file))
    assert isinstance(problem, Problem) and "2 MB" in problem.message
    assert "too large" in refused(b" " * (2 * 1024 * 1024 + 1)).message
    assert decoded(b" " * 2 * 1024 * 1024)
