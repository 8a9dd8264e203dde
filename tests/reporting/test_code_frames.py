from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gradcheck_suite.findings import Location
from gradcheck_suite.reporting.code_frame import Mark, draw_code_frame
from gradcheck_suite.reporting.layout import ASCII, Page


def draw(lines, *places, width=80, around=2, page=None, labels=()):
    labels = (*labels, *("" for _ in places))
    marks = [
        Mark(Location("a.py", *place), "^" if index == 0 else "-", "", labels[index])
        for index, place in enumerate(places)
    ]
    page = page or Page(width=width, glyphs=ASCII, indent=0)
    digits = len(str(len(lines)))
    return [
        row.plain for row in draw_code_frame(lines, marks, around=around, digits=digits, page=page)
    ]


LINES = ["one()", "two()", "three = four(five)", "six()", "seven()", "eight()"]


def test_the_range_is_underlined_amid_two_lines_on_either_side():
    assert draw(LINES, (3, 9, 3, 19)) == [
        "1 | one()",
        "2 | two()",
        "3 | three = four(five)",
        "  |         ^^^^^^^^^^",
        "4 | six()",
        "5 | seven()",
    ]


def test_without_a_column_the_whole_line_is_underlined():
    assert draw(["    step()   "], (1,)) == ["1 |     step()", "  |     ^^^^^^"]


def test_without_an_end_one_column_is_underlined():
    assert draw(["step()"], (1, 5)) == ["1 | step()", "  |     ^"]


def test_a_range_of_several_lines_is_underlined_to_the_end_of_its_first():
    assert draw(["f(", "  x)"], (1, 1, 2, 5)) == ["1 | f(", "  | ^^", "2 |   x)"]


@pytest.mark.parametrize("place", [(1, 99, 1, 100), (1, 7, 1, 3), (1, 7, 1, 99), (1, 0), (1, -3)])
def test_columns_off_the_line_stay_near_it(place):
    (row, under) = draw(["step()"], place)
    assert row == "1 | step()"
    assert "^" in under
    assert len(under) <= len(row) + 1


def test_places_nearby_are_marked_with_their_words():
    assert draw(LINES, (3,), (4, 1, 4, 6), labels=("", "used here")) == [
        "1 | one()",
        "2 | two()",
        "3 | three = four(five)",
        "  | ^^^^^^^^^^^^^^^^^^",
        "4 | six()",
        "  | ----- used here",
        "5 | seven()",
    ]


def test_words_that_do_not_fit_go_below():
    rows = draw(["step()"], (1,), width=32, labels=("the optimizer used the gradient here",))
    assert rows == [
        "1 | step()",
        "  | ^^^^^^",
        "  | the optimizer used the",
        "  | gradient here",
    ]


def test_blank_lines_at_the_edges_are_left_out():
    assert draw(["", " ", "step()", "", ""], (3,)) == ["3 | step()", "  | ^^^^^^"]
    assert draw(["one()", "", "step()", "", "two()"], (3,)) == [
        "1 | one()",
        "2 |",
        "3 | step()",
        "  | ^^^^^^",
        "4 |",
        "5 | two()",
    ]


def test_a_blank_line_can_be_marked():
    assert draw(["one()", ""], (2,)) == ["1 | one()", "2 |", "  | ^"]


def test_tabs_and_wide_characters_keep_the_underline_in_place():
    row, under = draw(["\tx = '\u5f20\u91cf' + y"], (1, 13, 1, 14))
    assert row.index("y") + 2 == under.index("^")  # two wide characters stand before it
    assert draw(["\tx = 1"], (1, 2, 1, 3)) == ["1 |     x = 1", "  |     ^"]


def test_control_characters_are_shown_and_counted():
    row, under = draw(["a\x1b\u202eb"], (1, 4, 1, 5))
    assert row == r"1 | a\x1b\u202eb"
    assert under.index("^") == row.index("b", row.index("e"))


def test_a_very_long_line_is_cut_about_its_mark():
    line = "a" * 5000 + "MARK" + "b" * 5000
    row, under = draw([line], (1, 5001, 1, 5005), width=60)
    assert len(row) == 60
    assert row.startswith("1 | ...a")
    assert row.endswith("b...")
    start = row.index("MARK")
    assert under == " " * 2 + "|" + " " * (start - 3) + "^^^^"


def test_a_mark_at_the_start_of_a_long_line_leaves_the_start():
    row, under = draw(["MARK" + "b" * 9999], (1, 1, 1, 5), width=40)
    assert row.startswith("1 | MARKb")
    assert row.endswith("...")
    assert len(row) == 40
    assert under == "  | ^^^^"


def test_a_mark_at_the_end_of_a_long_line_shows_the_end():
    row, under = draw(["b" * 9999 + "MARK"], (1, 10000, 1, 10004), width=40)
    assert row.endswith("MARK")
    assert row.index("MARK") == under.index("^")


def test_characters_that_the_stream_lacks_are_escaped():
    page = Page(width=80, encoding="ascii", glyphs=ASCII, indent=0)
    assert draw(["x = '\u2207'"], (1, 6, 1, 7), page=page) == [
        r"1 | x = '\u2207'",
        "  |      ^^^^^^",
    ]


@given(
    lines=st.lists(
        st.text(st.characters(exclude_categories=["Mn", "Me"], exclude_characters="\n"))
        | st.just("\u5f20" * 300)
        | st.just("\t" * 300),
        min_size=1,
        max_size=6,
    ),
    data=st.data(),
    width=st.integers(20, 200),
)
@settings(max_examples=150, deadline=None)
def test_any_line_fits_the_page(unshown, lines, data, width):
    number = data.draw(st.integers(1, len(lines)))
    column = data.draw(st.none() | st.integers(-2, 400))
    end = data.draw(st.none() | st.integers(-2, 400))
    rows = draw(lines, (number, column, number, end), width=width, labels=("a word or two",))
    assert not unshown("".join(rows))
    assert all(cell_len(row) <= width for row in rows)
    assert sum("^" in row and not row[0].isdigit() for row in rows) >= 1


@given(st.text("abc\t\u5f20\u91cf (", min_size=1, max_size=60), st.data())
def test_the_underline_is_as_wide_as_what_it_marks(line, data):
    line = line.rstrip() + "x"
    start = data.draw(st.integers(1, len(line)))
    end = data.draw(st.integers(start + 1, len(line) + 1))
    row, under = draw([line], (1, start, 1, end), width=400)
    shown = line.replace("\t", "    ")
    assert row == f"1 | {shown}"
    before, marked = line[: start - 1], line[start - 1 : end - 1]
    indent = cell_len(before.replace("\t", "    "))
    assert under == "  | " + " " * indent + "^" * cell_len(marked.replace("\t", "    "))
