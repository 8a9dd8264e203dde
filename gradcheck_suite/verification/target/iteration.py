"""Has an iteration within a computation come to its end: what does its last round still change?

A solver makes the same operators round after round. What it computes is only nearly what it means,
and how nearly is seen without knowing what that is: the computation is done once more, and in the
last round each operator gives what it gave in the round before. Where the results stay as they
were, one round more or less does not matter. Where they do not, the function is not the one whose
derivative an implicit gradient is, and the two may differ by any amount.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from gradcheck_suite._torch_compat import Operator, changing_results, writes_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = ["Computation", "Round", "last_rounds"]

Computation: TypeAlias = "Callable[[], Sequence[torch.Tensor | None]]"
"""Computes something, the same on every call."""
Round: TypeAlias = frozenset[tuple[str, int]]
"""How often a round makes which operators: by this an iteration is known again elsewhere."""

_FEWEST_ROUNDS = 4
"""How many times operators must be repeated to be taken for an iteration: what is written out
twice or three times is rather layers. Chosen; layers do not settle."""
_FEWEST_KNOWN = 2
"""How many times those of an iteration that is known from another place: two can be compared."""
_SHORTEST_ROUND = 2
"""How many operators a round has at least: four products in a row are a product of five factors,
of which those that are ones change nothing."""
_LONGEST_ROUND = 256
"""How many operators a round has at most. A bound on cost."""
_COMPUTE_NOTHING = frozenset({"aten.detach.default", "aten.alias.default"})
"""Operators that give what they are given."""
_MOST_OPERATORS = 200_000
"""Computations of more operators are not searched. A bound on cost: each is compared with as many
others as a round may be long."""
_MOST_ITERATIONS = 4
"""How many iterations are looked at, those of most operators first. A bound on cost: each takes
the whole computation once more."""


@dataclass(frozen=True, slots=True)
class _Iteration:
    """Where an iteration ends in the sequence of operators, and how many a round has."""

    end: int
    period: int
    length: int

    def made_of(self, made: Sequence[tuple[str, torch.Size]]) -> Round:
        """Return what a round makes."""
        names = Counter(name for name, _ in made[self.end - self.period : self.end])
        return frozenset(names.items())


def last_rounds(
    compute: Computation, *, known: Collection[Round] | None = None
) -> dict[Round, list[float]]:
    """Return what the last round of each iteration changes in each result of a computation.

    Args:
        compute: does it.
        known: the iterations that are looked for, if that is known; two rounds are enough then.

    Returns:
        For each iteration the changes as shares of the results' size; nothing where the computation
        raises or repeats nothing.
    """
    made: list[tuple[str, torch.Size]] = []

    def note(operator: Operator, result: torch.Tensor) -> torch.Tensor:
        made.append((str(operator), result.shape))
        return result

    found = {}
    try:
        with changing_results(note):
            expected = _copied(compute())
        for one in _iterations(made, known):
            if one.made_of(made) not in found:
                with changing_results(_Stopped(one).change):
                    cut = compute()
                changes = [_change(*pair) for pair in zip(expected, cut, strict=True)]
                found[one.made_of(made)] = changes
    except Exception:  # noqa: BLE001 - the user's function, of which results are changed
        return {}
    return found


class _Stopped:
    """Gives in the last round of an iteration what was given in the round before."""

    def __init__(self, iteration: _Iteration) -> None:
        self._iteration = iteration
        self._count = 0
        self._kept: list[torch.Tensor] = []

    def change(self, operator: Operator, result: torch.Tensor) -> torch.Tensor:
        """Return what an operator is to give."""
        place = self._count - (self._iteration.end - 2 * self._iteration.period)
        self._count += 1
        if place < 0 or place >= 2 * self._iteration.period:
            return result
        if place < self._iteration.period:
            self._kept.append(result.clone())
            return result
        before = self._kept[place - self._iteration.period]
        # What is written in place has to be seen by those who hold the tensor already.
        return result.copy_(before) if writes_in_place(operator) else before


def _iterations(
    made: Sequence[tuple[str, torch.Size]], known: Collection[Round] | None
) -> list[_Iteration]:
    """Find where operators are repeated, the longest repetitions first."""
    if not 0 < len(made) <= _MOST_OPERATORS:
        return []
    fewest = _FEWEST_ROUNDS if known is None else _FEWEST_KNOWN
    numbers: dict[tuple[str, torch.Size], int] = {}
    sequence = torch.tensor([numbers.setdefault(one, len(numbers)) for one in made])
    # Torch 2.6 detaches what it saves many times in a row: that is no round of anything.
    computing = torch.tensor([0, *(name not in _COMPUTE_NOTHING for name, _ in made)]).cumsum(0)
    found: list[_Iteration] = []
    for period in range(_SHORTEST_ROUND, min(_LONGEST_ROUND, len(made) // fewest) + 1):
        differing = (sequence[period:] != sequence[:-period]).nonzero().flatten()
        ends = torch.cat((differing, torch.tensor([len(made) - period])))
        starts = torch.cat((torch.tensor([-1]), differing)) + 1
        repeated = (ends - starts) * (computing[ends + period] > computing[starts])
        at = int(repeated.argmax())
        length = int(repeated[at]) + period
        one = _Iteration(int(ends[at]) + period, period, length)
        if length >= fewest * period and (known is None or one.made_of(made) in known):
            found.append(one)
    return _shortest_of_each(found)


def _shortest_of_each(found: Sequence[_Iteration]) -> list[_Iteration]:
    """Leave out those whose rounds are several rounds of another, which comes before."""
    kept: list[_Iteration] = []
    for one in found:
        if not any(
            one.period % other.period == 0 and abs(one.end - other.end) < one.period
            for other in kept
        ):
            kept.append(one)
    kept.sort(key=lambda one: -one.length)
    return kept[:_MOST_ITERATIONS]


def _copied(results: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [None if one is None else one.detach().clone() for one in results]


def _change(before: torch.Tensor | None, now: torch.Tensor | None) -> float:
    """Return by what share of its size a result has changed, in the 2-norm."""
    if before is None or now is None or before.shape != now.shape:
        return 0.0
    size = float(torch.linalg.vector_norm(before.double()))
    apart = float(torch.linalg.vector_norm(before.double() - now.detach().double()))
    return apart / size if size > 0.0 else 0.0
