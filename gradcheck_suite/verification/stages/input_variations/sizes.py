"""Other sizes for the inputs: prime ones, which are no multiple of any block, and one alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.directions import generator_for, random_signs
from gradcheck_suite.verification.target.cost import cost_of
from gradcheck_suite.verification.target.dense_views import PLAIN
from gradcheck_suite.verification.target.pure_function import PureFunction

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["Resized", "resized_subjects"]

_BLOCKS = "look for a block size that the last block need not fill, and for an index without a mask"
_ONE = "look for squeeze(), and for a dimension of size 1 that is taken for one to be broadcast"

_NAMES = {0: "a first dimension of", -1: "a last dimension of"}
_STREAM = 91
"""Stream of the new entries; any number does that no other stream uses."""
_JITTER = 0.125
"""By what share of themselves repeated entries differ from those they repeat, times 1/2 to 3/2.
Chosen: no two are equal, and each means much the same."""
_MANY_ELEMENTS = 8192
"""Hand-written kernels work in blocks of up to some thousand elements; two of them and a rest."""
_MOST_MADE = 2**22
"""How many elements a call may make at such a size, where it makes more than in proportion (all
pairs of rows): 32 MiB in float64. A bound on cost."""


@dataclass(frozen=True, slots=True)
class Resized:
    """The subject with another size, in words, and other ways to the same if it is refused.

    Attributes:
        subject: the function.
        words: what its size is.
        hint: what to look for where it is wrong.
        others: other ways to the same, to try if it is refused.
        multiple: the same with a multiple of the given size, which shows whether what is wrong may
            be that other sizes are not meant at all; None where the size gets smaller.
        rule: what sizes are then, in words.
    """

    subject: PureFunction
    words: str
    hint: str
    others: tuple[PureFunction, ...] = ()
    multiple: PureFunction | None = None
    rule: str = ""


def resized_subjects(subject: PureFunction, seed: int, *, large: bool) -> Iterator[Resized]:
    """Yield the subject with its inputs resized, in one dimension at a time.

    Inputs that have the same size there are resized along, or only those of as many dimensions;
    parameters can't be. New entries are copies of the given ones, a little off where they are
    floating-point.

    Args:
        subject: the function.
        seed: of what new entries are off by.
        large: whether the first dimension grows until there are several thousand elements, and the
            others are resized too, and the first is tried with a size of 1.
    """
    inputs = [variable for variable in subject.variables if variable.kind == "input"]
    if not inputs or any(variable.representation != PLAIN for variable in inputs):
        return
    first = max(inputs, key=lambda variable: variable.value.dim()).value
    if first.dim() == 0 or first.numel() == 0:
        return
    leading = first.shape[0]
    wanted = leading
    if large:
        wanted = _affordable(subject, seed, leading, _MANY_ELEMENTS * leading // first.numel())
    ways = [(0, leading, _next_prime(max(wanted, leading)))]
    if first.dim() > 1 and large:
        ways.append((-1, first.shape[-1], _next_prime(first.shape[-1])))
        ways += [
            (place, first.shape[place], _next_prime(first.shape[place]))
            for place in range(1, first.dim() - 1)
        ]
    if first.dim() > 1 and leading > 1 and large and _may_shrink(subject):
        ways.append((0, leading, 1))
    for dimension, old, new in ways:
        words = f"{_NAMES.get(dimension, f'dimension {dimension} of size')} {new} in place of {old}"
        every = _Resizing(dimension, old, new, None)
        alike = _Resizing(dimension, old, new, first.dim())
        hint = _ONE if new == 1 else _BLOCKS
        larger = _Resizing(dimension, old, old * _next_prime(new // old), None)
        yield Resized(
            every.of(subject, seed),
            f"with {words}",
            hint,
            (alike.of(subject, seed),),
            None if new < old else larger.of(subject, seed),
            f"multiples of {old}",
        )


def _affordable(subject: PureFunction, seed: int, leading: int, wanted: int) -> int:
    """Return a first dimension at which a call makes no more elements than it should.

    What makes elements in proportion to the first dimension stays below by itself; all pairs of
    rows, a polynomial, are followed by what two small sizes make.
    """
    if wanted <= 2 * leading:
        return wanted
    small = cost_of(subject)
    double = cost_of(_Resizing(0, leading, 2 * leading, None).of(subject, seed))
    if small is None or double is None or not 0 < 2 * small.elements < double.elements:
        return wanted
    power = math.log2(double.elements / small.elements)
    most = leading * (_MOST_MADE / small.elements) ** (1.0 / power)
    return min(wanted, int(most))


def _may_shrink(subject: PureFunction) -> bool:
    """Return whether no index can come to lie outside: those kill a process that runs on a GPU."""
    given = [variable.value for variable in subject.variables]
    given += [constant.value for constant in subject.constants]
    return all(each.is_cpu and (each.is_floating_point() or each.is_complex()) for each in given)


@dataclass(frozen=True, slots=True)
class _Resizing:
    """Which dimension is resized from which size to which, of tensors of how many dimensions."""

    dimension: int
    old: int
    new: int
    rank: int | None

    def of(self, subject: PureFunction, seed: int) -> PureFunction:
        """Return the subject with its inputs resized."""
        values = [
            self._resized(variable.value, generator_for(seed, _STREAM, index))
            if variable.kind == "input"
            else variable.value
            for index, variable in enumerate(subject.variables)
        ]
        constants = [
            self._resized(constant.value, None) if constant.kind == "input" else constant.value
            for constant in subject.constants
        ]
        return subject.elsewhere(values=values, constants=constants or None)

    def _resized(self, value: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        if (
            value.layout != torch.strided
            or value.dim() <= max(self.dimension, 0)
            or value.shape[self.dimension] != self.old
            or self.rank not in {None, value.dim()}
        ):
            return value
        places = torch.arange(self.new, device=value.device) % self.old
        resized = value.index_select(self.dimension, places)
        if generator is None or not resized.is_floating_point() or self.new < self.old:
            return resized
        drawn = random_signs(resized, generator) * _JITTER
        drawn.narrow(self.dimension, 0, self.old).zero_()
        return resized * (1.0 + drawn)


def _next_prime(above: int) -> int:
    """Return the smallest odd prime that is larger."""
    candidate = max(above + 1, 3)
    while candidate % 2 == 0 or any(
        candidate % divisor == 0 for divisor in range(3, int(candidate**0.5) + 1, 2)
    ):
        candidate += 1
    return candidate
