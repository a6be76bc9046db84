"""Code frames stay within their width, point at the span, and let nothing through to the terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from validate_ddp.report.frames import frame
from validate_ddp.report.printable import cells as cells_of
from validate_ddp.report.printable import clip, escape, paint


def draw(lines: list[str], start: tuple[int, int], end: tuple[int, int], width: int = 80, around: int = 0) -> list[str]:
    return frame(lines, start, end, around=around, gutter=2, width=width, color=False, style="error")


def columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def test_carets_stand_under_the_span() -> None:
    assert draw(["x = f(1)"], (1, 4), (1, 8)) == [" 1 | x = f(1)", "   |     ^^^^"]


def test_an_empty_span_gets_one_caret() -> None:
    assert draw(["x"], (1, 1), (1, 1))[1] == "   |  ^"


def test_tabs_and_wide_characters_keep_the_carets_in_place() -> None:
    code, carets = draw(["\tif 日本: f(1)"], (1, 8), (1, 12))
    assert code == " 1 |     if 日本: f(1)"
    assert columns(code[: code.index("f(1)")]) == carets.index("^")
    assert carets.count("^") == 4


def test_lines_of_a_short_span_are_all_underlined() -> None:
    rows = draw(["f(", "    a,", ")"], (1, 0), (3, 1))
    assert rows == [" 1 | f(", "   | ^^", " 2 |     a,", "   |     ^^", " 3 | )", "   | ^"]


def test_of_a_long_span_the_first_line_is_shown() -> None:
    lines = ["f(", *["    a,"] * 9, ")"]
    assert draw(lines, (1, 0), (11, 1)) == [" 1 | f(", "   | ^^"]


def test_blank_lines_round_the_span_are_left_out() -> None:
    assert draw(["", "f()", "  "], (2, 0), (2, 3), around=1) == [" 2 | f()", "   | ^^^"]


def test_a_long_line_is_clipped_round_the_span() -> None:
    line = "x" * 500 + "CALL" + "y" * 500
    code, carets = draw([line], (1, 500), (1, 504), width=60)
    assert len(code) <= 60 and code.count("...") == 2
    assert code[carets.index("^") : carets.rindex("^") + 1] == "CALL"


def test_a_place_outside_of_the_file_gives_no_frame() -> None:
    assert draw(["x"], (2, 0), (2, 1)) == []
    assert draw([], (1, 0), (1, 1)) == []


NASTY = st.text(
    alphabet=st.sampled_from("ab \t\f\x00\x07\x1b[31m\x9b\u202e\u2066\u200b\u2028\u0301日😀\ud800"), max_size=120
)


def test_a_caret_behind_a_line_that_fills_the_width_stays_within_it() -> None:
    rows = draw(["\u200b\u200b\u200b日"], (1, 4), (1, 5), width=10, around=0)
    assert all(columns(row) <= 25 for row in rows)
    assert "^" in rows[1]


@given(st.lists(NASTY, min_size=1, max_size=4), st.data(), st.integers(10, 120), st.integers(0, 2))
def test_any_text_and_any_span_give_printable_rows_within_the_width(
    lines: list[str], data: st.DataObject, width: int, around: int
) -> None:
    position = st.tuples(st.integers(-1, 6), st.integers(-2, 130))
    start, end = data.draw(position), data.draw(position)
    rows = draw(lines, start, end, width=width, around=around)
    for row in rows:
        assert row.isprintable()
        assert columns(row) <= max(width, 25)
    assert bool(rows) == (1 <= start[0] <= len(lines))
    assert any("^" in row for row in rows) or not rows


@given(NASTY)
def test_escaped_text_is_one_printable_line(text: str) -> None:
    assert escape(text).isprintable()
    if text.isprintable():
        assert escape(text) == text


@given(NASTY, st.integers(0, 130), st.integers(0, 130), st.integers(1, 60))
def test_clipping_shows_the_start_of_the_span(text: str, first: int, last: int, width: int) -> None:
    shown = cells_of(text)
    start, end = clip(shown, first, last, width)
    total = sum(size for _, size in shown[start:end])
    assert 0 <= start <= end <= len(shown)
    assert total <= width
    assert start <= min(first, len(shown))


def test_colour_is_put_on_only_when_asked_for() -> None:
    assert paint("x", "error", False) == "x"
    assert paint("x", "error", True) == "\x1b[1;31mx\x1b[0m"
    assert paint("", "error", True) == ""
