"""Does backward take the incoming gradient in any layout?

``out.sum().backward()`` hands every element the same memory (strides of zero), ``out.t()`` hands a
transposed gradient, and slicing one with gaps. Kernels that take a pointer read the wrong numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.contracts.pulling import Breach
from gradcheck_suite.verification.one_line import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.verification.contracts.pullback import Row
    from gradcheck_suite.verification.contracts.pulling import Given, Probed

__all__ = ["probe_aliasing", "probe_layouts"]

_GAP = -3.75


def probe_layouts(probed: Probed) -> Iterator[Breach]:
    """Compare the gradients for strided, transposed and expanded incoming gradients."""
    for words, lay, suits in (
        ("a strided", _strided, _has_elements),
        ("a transposed", _transposed, _is_matrix),
    ):
        if any(suits(given) for given in probed.given.values()):
            varied = {index: lay(given) for index, given in probed.given.items()}
            yield from _compared(probed, varied, probed.row, words)
    for expand, suits in ((_even, _has_several), (_rows, _is_matrix)):
        if any(suits(given) for given in probed.given.values()):
            expanded = {index: expand(given) for index, given in probed.given.items()}
            compact = {index: given.contiguous() for index, given in expanded.items()}
            expected = probed.pullback.pull(compact)
            yield from _compared(probed, expanded, expected, "an expanded")


def probe_aliasing(probed: Probed) -> Iterator[Breach]:
    """Compare the gradients where two outputs get one and the same tensor with two equal ones."""
    first: dict[tuple[object, ...], int] = {}
    shared: dict[int, torch.Tensor] = {}
    for index, given in probed.given.items():
        key = (given.shape, given.dtype)
        source = first.setdefault(key, index)
        if source != index:
            shared.update({source: probed.given[source], index: probed.given[source]})
    if not shared:
        return
    expected = probed.pullback.pull({index: given.clone() for index, given in shared.items()})
    one = {id(given): given.clone() for given in shared.values()}
    aliased = {index: one[id(given)] for index, given in shared.items()}
    for breach in _compared(probed, aliased, expected, "an aliased"):
        yield Breach("aliased", breach.words, None, breach.difference, breach.error)


def _compared(probed: Probed, varied: Given, expected: Row, words: str) -> Iterator[Breach]:
    try:
        seen = probed.pullback.pull(varied)
    except Exception as error:  # noqa: BLE001 - whatever the user's backward raises
        yield Breach("layout", words, None, error=one_line(error))
        return
    apart = probed.apart(expected, seen)
    if apart > probed.allowed:
        yield Breach("layout", words, None, apart)


def _strided(given: torch.Tensor) -> torch.Tensor:
    return torch.stack((torch.full_like(given, _GAP), given), dim=-1)[..., 1]


def _transposed(given: torch.Tensor) -> torch.Tensor:
    order = tuple(reversed(range(given.dim())))
    return given.permute(order).contiguous().permute(order)


def _even(given: torch.Tensor) -> torch.Tensor:
    """Return one of its values with strides of zero, as ``sum`` and ``mean`` hand on."""
    return given.reshape(-1)[:1].clone().squeeze().expand(given.shape)


def _rows(given: torch.Tensor) -> torch.Tensor:
    """Return its first slice for all of them, as ``sum(0)`` hands on."""
    return given[:1].clone().expand_as(given) if given.dim() and given.numel() else given


_has_several: Callable[[torch.Tensor], bool] = lambda given: given.numel() > 1  # noqa: E731
_has_elements: Callable[[torch.Tensor], bool] = lambda given: given.numel() > 0  # noqa: E731
_is_matrix: Callable[[torch.Tensor], bool] = lambda given: (  # noqa: E731
    sum(size > 1 for size in given.shape) > 1
)
