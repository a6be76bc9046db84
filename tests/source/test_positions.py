"""Positions agree with those of Python's own parser."""

from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st
from validate_ddp.source.positions import character_column, line_starts, lines_of, offset_of, with_plain_ends

TEXTS = st.text(alphabet=st.sampled_from("aé日😀\t\f\x0b\x1c\u2028\x85 \r\n"), max_size=40)


@given(TEXTS)
def test_lines_and_starts_agree(text: str) -> None:
    lines = lines_of(text)
    starts = line_starts(text)
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert text[start : start + len(line)] == line
        assert text[start + len(line) : start + len(line) + 1] in ("", "\n", "\r")


@given(TEXTS, st.integers(-3, 60), st.integers(-3, 60))
def test_no_position_leaves_the_text(text: str, line: int, column: int) -> None:
    assert 0 <= offset_of(text, line_starts(text), line, column) <= len(text)


@given(TEXTS)
def test_plain_ends_keep_every_index(text: str) -> None:
    plain = with_plain_ends(text)
    assert len(plain) == len(text) and "\r" not in plain
    assert len(lines_of(plain)) == len(lines_of(text))


def test_columns_are_those_of_the_parser() -> None:
    for newline in ("\n", "\r\n", "\r"):
        text = newline.join(["é = 1", "s = '日本' + call(😀1)".replace("😀", "x"), "\fy = 'é'; f(y)", ""])
        starts = line_starts(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                start = offset_of(text, starts, node.lineno, node.col_offset)
                end = offset_of(text, starts, node.end_lineno or 0, node.end_col_offset or 0)
                assert text[start:end] in ("call(x1)", "f(y)")


def test_a_column_within_a_character_counts_the_characters_before_it() -> None:
    assert [character_column("日a", column) for column in range(6)] == [0, 0, 0, 1, 2, 2]
