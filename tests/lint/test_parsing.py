"""Quick looks at the text of a source say what slower ones would."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_lint.parsing import _has_short_lines, _nests_little

_DEPTHS = {**dict.fromkeys(b"([{", 1), **dict.fromkeys(b")]}", -1)}


@given(st.lists(st.integers(0, 12), max_size=8))
def test_lines_are_short_if_the_longest_is(sizes: list[int]) -> None:
    text = b"\n".join(b"x" * size for size in sizes)
    assert _has_short_lines(text, 10) is (max(sizes, default=0) < 10)


@given(
    st.lists(st.sampled_from([b"(", b"[", b"{", b")", b"]", b"}"]), max_size=120).map(b"".join),
    st.integers(0, 140),
    st.sampled_from([b"(", b"[(", b"{[("]),
)
def test_deep_brackets_are_never_taken_for_shallow(noise: bytes, depth: int, pair: bytes) -> None:
    opening = pair * (depth // len(pair))
    closing = opening[::-1].translate(bytes.maketrans(b"([{", b")]}"))
    for text in (opening + noise + closing, opening + closing + noise):
        deepest = max(accumulate(map(_DEPTHS.__getitem__, text)), default=0)
        assert _nests_little(text) is (deepest < 100)


@pytest.mark.parametrize("brackets", [b"()", b"[]", b"{}", b"([{}])" * 50])
def test_many_brackets_side_by_side_are_shallow(brackets: bytes) -> None:
    assert _nests_little(brackets * 1000)
