"""Say what a constant factor between two gradients may come from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["name_ratio"]

_MOST_NAMES = 3


def name_ratio(ratio: float, error: float, shapes: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Name known numbers that a ratio equals within its error; empty if there is none.

    >>> name_ratio(0.25, 1e-9, [("x", (4, 5))])
    '1/4, and 4 is the size of dimension 0 of `x`'
    >>> name_ratio(-2 ** 0.5, 1e-9, [])
    '-sqrt(2)'
    >>> name_ratio(1.01, 1e-9, [])
    ''

    Args:
        ratio: analytic over numeric gradient.
        error: how far the ratio may be off, in the same unit.
        shapes: names and shapes of tensors whose sizes may be the factor.
    """
    sign = "-" if ratio < 0.0 else ""
    size = abs(ratio)
    sizes: dict[int, list[str]] = {}
    for count, origin in _sizes(shapes):
        sizes.setdefault(count, []).append(origin)
    for words, value, count in _known(sizes):
        if abs(size - value) <= max(error, 4e-16 * value):
            origins = sizes.get(count, [])[:_MOST_NAMES]
            if not origins:
                return f"{sign}{words}"
            return f"{sign}{words}, and {count} is {' or '.join(origins)}"
    return ""


def _known(sizes: Iterable[int]) -> Iterator[tuple[str, float, int]]:
    yield "1", 1.0, 1
    for count in dict.fromkeys((2, *sizes, 3, 4)):
        yield str(count), float(count), count
        yield f"1/{count}", 1.0 / count, count
    for count in dict.fromkeys((2, *sizes)):
        yield f"sqrt({count})", math.sqrt(count), count
        yield f"1/sqrt({count})", 1.0 / math.sqrt(count), count
    for count in sizes:
        yield f"{count - 1}/{count}", (count - 1) / count, count
        if count > 1:
            yield f"{count}/{count - 1}", count / (count - 1), count
    for words, value in (("pi", math.pi), ("2*pi", 2.0 * math.pi), ("ln(2)", math.log(2.0))):
        yield words, value, 0
        yield f"1/{words}" if "*" not in words else f"1/({words})", 1.0 / value, 0


def _sizes(shapes: Iterable[tuple[str, Sequence[int]]]) -> Iterator[tuple[int, str]]:
    for name, shape in shapes:
        for dim, size in enumerate(shape):
            if size > 1:
                yield size, f"the size of dimension {dim} of `{name}`"
        total = math.prod(shape)
        if len(shape) > 1 and total > 1:
            yield total, f"the number of elements of `{name}`"
