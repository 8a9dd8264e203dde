from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_suite.reporting.text import (
    byte_count,
    encodable,
    number,
    one_line,
    plural,
    visible,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_visible_text_has_nothing_that_a_terminal_obeys(unshown, text):
    shown = visible(text)
    assert not unshown(shown)
    assert "\n" not in shown
    assert visible(shown) == shown


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_visible_text_stays_as_it_is(text):
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\rb", r"a\rb"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066", r"\u2066"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("a\u200bb", r"a\u200bb"),
        ("caf\u00e9 \u5f20\u91cf \u2207", "caf\u00e9 \u5f20\u91cf \u2207"),
    ],
)
def test_control_characters_are_spelled_out(text, shown):
    assert visible(text) == shown


def test_newlines_are_kept_on_request():
    assert visible("a\n\x1bb", keep_newlines=True) == "a\n\\x1bb"


@given(ANY_TEXT)
def test_one_line_is_one_line(text):
    assert len(one_line(text).splitlines()) <= 1


@given(ANY_TEXT, st.sampled_from(["ascii", "latin-1", "cp1252", "utf-8", "no-such-encoding"]))
def test_encodable_text_can_be_encoded(text, encoding):
    shown = encodable(text, encoding)
    shown.encode("ascii" if encoding == "no-such-encoding" else encoding)


def test_a_stream_without_encoding_takes_any_text():
    assert encodable("\u2502", None) == "\u2502"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (3_355_443, "3.2 MiB"),
        (5 * 1024**4, "5.0 TiB"),
        (2 * 1024**5, "2.0 PiB"),
        (5000 * 1024**5, "5,000.0 PiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_are_counted_in_binary_units(count, shown):
    assert byte_count(count) == shown


def test_numbers_are_easy_to_read():
    assert number(1234567) == "1,234,567"
    assert number(3.14159) == "3.142"
    assert number(float("nan")) == "nan"
    assert plural(0, "error") == "0 errors"
    assert plural(1, "entry", "entries") == "1 entry"
