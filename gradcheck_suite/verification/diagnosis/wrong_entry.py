"""Narrow a wrong gradient down to one entry of the input and one of the output.

Random signs times magnitudes keep errors from cancelling, so the deviation of a group of entries
tells whether a wrong one is among them. Halving the group that deviates finds one of n entries in
about log2(n) central differences, and so does halving the cotangent for the entry of the output.
How many entries are wrong is counted on a random sample of single entries and, where those are
few, estimated from the share of random groups that deviate (group testing, Dorfman 1943).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.directions import generator_for, random_signs
from gradcheck_suite.verification.numerics.evaluation_point import Point, evaluate, match_outputs
from gradcheck_suite.verification.target.dense_views import dense

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.numerics.precision import Precision
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["WrongEntry", "find_wrong_entry"]

_SMALL = 24
"""Up to so many entries each is looked at by itself, at two steps. A bound on cost."""
_SAMPLE = 24
"""How many entries drawn at random are looked at by themselves to count the wrong ones. A bound on
cost: at most 4 evaluations each."""
_FEWEST_SAMPLED = 8
"""How many are looked at however many evaluations the search has taken. Chosen: the count is an
estimate."""
_FEWEST_HITS = 3
"""From so many wrong entries in the sample their share is taken for that of all: it is then known
to within some 60 % (one over the root of 3); of fewer, groups tell more."""
_GROUPS = 3
"""How many random groups of each size are tested. A bound on cost: two differences each."""
_CLEARLY = 4.0
"""How many roundings of the output, over the step, a deviation must span to count as one. Chosen:
as much as a whole gradient must deviate, which is known to be wrong here."""
_AMBIGUOUS = 3.0
"""Where the lesser half of the entries deviates by more than a third of the other, both deserve a
second look, at two steps. Chosen; it costs evaluations alone."""
_MOST_EVALUATIONS = 200
"""The count of wrong entries is an estimate: it stops after so many evaluations, so that all stays
within 250. A bound on cost."""
_LASTING = 0.6
"""Of the deviation at one step, this share must be left at half the step: an error leaves all of
it, truncation, which goes with the square of the step, a fourth. The middle is 0.625."""
_ENTRIES, _COTANGENT, _GROUP = 7001, 7002, 7003
"""Seeds of three streams; any numbers do that no other stream uses."""


@dataclass(frozen=True, slots=True)
class WrongEntry:
    """One entry of a Jacobian that is wrong.

    Attributes:
        input_index: where the entry lies in the input.
        output_index: where in the output; None where it could not be told.
        numeric: the derivative of that output entry with respect to that input entry, by
            differences. Where ``output_index`` is None, of the output weighted by a random
            cotangent. For complex tensors it is the derivative of a real or imaginary part.
        analytic: the same by autograd.
        bound: how far ``numeric`` may be from the truth.
        count: how many entries of the input have a wrong gradient.
        total: how many entries the input has.
        exact: whether ``count`` was counted; if not, it is estimated from a sample.
        least: whether more may be wrong, which half precision is too coarse to show one by one.
    """

    input_index: tuple[int, ...]
    output_index: tuple[int, ...] | None
    numeric: float
    analytic: float
    bound: float
    count: int
    total: int
    exact: bool = True
    least: bool = False


def find_wrong_entry(
    context: ProbeContext, output: int, variable: int, step: float
) -> WrongEntry | None:
    """Narrow a failure down to one entry of the variable and one of the output.

    For n entries of input and m of output it takes about ``2 log2(n) + log2(m) + 100`` calls of
    the function, most of them for the count.

    Args:
        context: gives the function, the point and random draws.
        output: index of the output.
        variable: index of the variable.
        step: the step, relative to the variable's scale, at which the failure was measured.

    Returns:
        The worst entry that was looked at, or None if no entry by itself is clearly wrong, or
        the function fails at the points around.
    """
    try:
        direction, eps = context.direction(0, variable), context.precision.eps
        search = _Deviations(context.subject, context.point, direction, output, variable, eps=eps)
        return _EntrySearch(search, context.precision, step).run()
    except _NotEvaluableError:
        return None


class _NotEvaluableError(Exception):
    """The function can't be evaluated at a point around the given one."""


@dataclass(frozen=True, slots=True)
class _Deviation:
    """Numeric less analytic derivative along some entries, and what rounding may add to it."""

    value: float
    rounding: float

    @property
    def is_clear(self) -> bool:
        return math.isfinite(self.value) and abs(self.value) > _CLEARLY * self.rounding


class _Deviations:
    """Measure the deviation with only some entries moving.

    Tensors are seen as flat lists of real numbers: a complex entry is two of them.
    """

    def __init__(
        self,
        subject: PureFunction,
        point: Point,
        direction: torch.Tensor,
        output: int,
        variable: int,
        *,
        eps: float,
    ) -> None:
        self.subject = subject
        self._before = subject.evaluations
        self.point = point
        self.value = point.values[variable]
        self.tensor = point.outputs[output].tensor
        self.direction = _flat(direction)
        self.entries = self.direction.numel()
        self._output = output
        self._variable = variable
        cotangent = random_signs(self.tensor, generator_for(_COTANGENT, output, variable))
        finite = point.finite[output]
        self.cotangent = cotangent if finite is None else cotangent.where(finite, 0.0)
        self.gradient = self.vjp(self.cotangent)
        self._weights = _flat(self.cotangent)
        known = _flat(self.tensor).where(self._weights != 0.0, 0.0)
        self._magnitude = float(torch.linalg.vector_norm(self._weights * known))
        self._size = float(known.abs().max()) if known.numel() else 0.0
        # The coarsest of the types rounds.
        kinds = (self.tensor.dtype, self.value.dtype)
        self._eps = max(eps, *(torch.finfo(kind).eps for kind in kinds))

    @property
    def evaluations(self) -> int:
        """How many calls of the function this search has made."""
        return self.subject.evaluations - self._before

    def vjp(self, cotangent: torch.Tensor) -> torch.Tensor:
        """Return the gradient for one cotangent, flat; zeros where autograd gives none."""
        with torch.enable_grad():
            leaves = [value.clone().requires_grad_() for value in self.point.values]
            produced = match_outputs(self.subject, self.point.outputs, self.subject(leaves))
        tensor, leaf = produced[self._output], leaves[self._variable]
        if not tensor.requires_grad:
            return torch.zeros_like(self.direction)
        given = cotangent.clone()
        gradient: torch.Tensor | None = torch.autograd.grad(tensor, leaf, given, allow_unused=True)[
            0
        ]
        return torch.zeros_like(self.direction) if gradient is None else _flat(dense(gradient))

    def change(self, chosen: torch.Tensor, step: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how output and input change, both flat, when the chosen entries move."""
        moved = torch.zeros_like(self.direction)
        moved[chosen] = step * self.direction[chosen]
        shift = _unflat(moved, self.value)
        ahead, behind = self.value + shift, self.value - shift
        above, below = self._evaluate(ahead), self._evaluate(behind)
        difference = (above - below).where(self._weights != 0.0, 0.0)
        if not bool(torch.isfinite(difference).all()):
            raise _NotEvaluableError
        return difference, _flat(ahead) - _flat(behind)

    def deviation(self, chosen: torch.Tensor, step: float) -> _Deviation:
        """Measure one central difference along the chosen entries, less what autograd says."""
        difference, displacement = self.change(chosen, step)
        numeric = float((self._weights * difference).sum())
        analytic = float((self.gradient * displacement).sum())
        return _Deviation((numeric - analytic) / (2.0 * step), self._eps * self._magnitude / step)

    def column(self, entry: int, step: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the derivatives of every output entry along one input entry, and their errors.

        Two central differences, extrapolated; the error is what the extrapolation changed and
        what rounding may do.
        """
        chosen = torch.tensor([entry])
        slopes = []
        for size in (step, step / 2.0):
            difference, displacement = self.change(chosen, size)
            width = float(displacement[entry])
            if width == 0.0:
                raise _NotEvaluableError
            slopes.append(difference / width)
        value = slopes[1] + (slopes[1] - slopes[0]) / 3.0
        width = abs(float(self.direction[entry])) * step
        return value, (slopes[1] - slopes[0]).abs() + 4.0 * self._eps * self._size / width

    def _evaluate(self, value: torch.Tensor) -> torch.Tensor:
        values = [known.clone() for known in self.point.values]
        values[self._variable] = value
        try:
            produced = evaluate(self.subject, values, recorded=self.point.recorded)
            tensor = match_outputs(self.subject, self.point.outputs, produced)[self._output]
        except Exception as error:
            # Whatever the user's function raises off the given point.
            raise _NotEvaluableError from error
        return _flat(tensor)


class _EntrySearch:
    """Find a wrong entry, count the wrong ones, and describe the worst."""

    def __init__(self, search: _Deviations, precision: Precision, step: float) -> None:
        self._search = search
        self._rtol = precision.rtol
        self._is_half = precision.is_half
        usual = precision.eps ** (1.0 / 3.0)
        self._coarse = step if math.isfinite(step) else usual
        # One central difference by itself is best at the cube root of epsilon; where the
        # function is a staircase on that scale, the step that showed the failure is needed.
        self._steps = (min(usual, self._coarse), self._coarse)

    def run(self) -> WrongEntry | None:
        found: dict[int, float] = {}
        exact = True
        step = self._steps[0]
        if self._search.entries <= _SMALL:
            for step in self._steps:
                found = self._wrong_among(range(self._search.entries), step)
                if found:
                    break
            count: float = len(found)
        else:
            first, step = self._first()
            if first is None:
                return None
            found = self._wrong_among([first], step)
            count, exact = self._count(found, step)
        if not found:
            return None
        worst = max(found, key=lambda entry: abs(found[entry]))
        return self._described(worst, step, len(found), count, exact=exact)

    def _first(self) -> tuple[int | None, float]:
        """Find a wrong entry: at the best step first, then with care, then at the other step."""
        usual, coarse = self._steps
        half = _MOST_EVALUATIONS // 2
        for step, careful in ((usual, False), (usual, True), (coarse, False)):
            entry = self._halve(step, careful=careful, most=2 * half if careful else half)
            if entry is not None and self._is_wrong(entry, step):
                return entry, step
            if self._search.evaluations > half:
                break
        return None, usual

    def _halve(self, step: float, *, careful: bool, most: int) -> int | None:
        """Follow the half that deviates more, down to one entry.

        Careful means that both halves are always measured at two steps. None if the search has
        then made ``most`` evaluations: where every half deviates alike, all would need care.
        """
        low, high = 0, self._search.entries
        whole = self._search.deviation(torch.arange(low, high), step).value
        while high - low > 1:
            if self._search.evaluations > most:
                return None
            middle = (low + high) // 2
            left, right = torch.arange(low, middle), torch.arange(middle, high)
            first = self._search.deviation(left, step).value
            second = whole - first
            if careful or _AMBIGUOUS * min(abs(first), abs(second)) > max(abs(first), abs(second)):
                first, second = self._with_care(left, right, first, second, step)
            if abs(first) >= abs(second):
                high, whole = middle, first
            else:
                low, whole = middle, second
        return low

    def _with_care(
        self, left: torch.Tensor, right: torch.Tensor, first: float, second: float, step: float
    ) -> tuple[float, float]:
        """Take the truncation error out of both halves, if it matters.

        Both halves deviate. Each may hold wrong entries, or one may show only what third
        derivatives of many right entries add up to.
        """
        finer = self._search.deviation(left, step / 2.0)
        truncation = 4.0 / 3.0 * abs(first - finer.value)
        if min(abs(first), abs(second)) > _CLEARLY**2 * (truncation + finer.rounding):
            return first, second
        coarse = self._search.deviation(right, step).value
        fine = self._search.deviation(right, step / 2.0).value
        return finer.value + (finer.value - first) / 3.0, fine + (fine - coarse) / 3.0

    def _is_wrong(self, entry: int, step: float) -> bool:
        return bool(self._wrong_among([entry], step))

    def _wrong_among(self, entries: Sequence[int], step: float) -> dict[int, float]:
        """Return the deviations, per unit of the entry, of those that are wrong by themselves."""
        search = self._search
        wrong = {}
        for entry in entries:
            deviation = self._lasting(torch.tensor([entry]), step)
            if deviation is None:
                continue
            unit = abs(float(search.direction[entry]))
            size = abs(float(search.gradient[entry])) * unit
            if abs(deviation) > self._rtol * max(size, abs(deviation) - size):
                wrong[entry] = deviation / unit
        return wrong

    def _lasting(self, chosen: torch.Tensor, step: float) -> float | None:
        """Return the deviation if it is beyond rounding and does not go away with the step."""
        first = self._search.deviation(chosen, step)
        if not first.is_clear:
            return None
        second = self._search.deviation(chosen, step / 2.0)
        if not second.is_clear or abs(second.value) < _LASTING * abs(first.value):
            return None
        return second.value

    def _count(self, found: dict[int, float], step: float) -> tuple[float, bool]:
        """Estimate how many entries are wrong, adding those that are looked at to ``found``."""
        search = self._search
        total = search.entries
        generator = generator_for(_ENTRIES, total)
        others = torch.randperm(total, generator=generator)
        others = others[~torch.isin(others, torch.tensor(list(found)))]
        if self._lasting(others, step) is None:
            return 1, True
        left = max(_FEWEST_SAMPLED, (_MOST_EVALUATIONS - search.evaluations) // 4)
        sample = others[: min(_SAMPLE, left)]
        hits = self._wrong_among(sample.tolist(), step)
        found.update(hits)
        if len(hits) >= _FEWEST_HITS or len(sample) == len(others):
            share = len(hits) / len(sample)
            return 1 + round(share * len(others)), len(sample) == len(others)
        return max(len(found), 1 + self._from_groups(others, step, generator)), False

    def _from_groups(self, others: torch.Tensor, step: float, generator: torch.Generator) -> int:
        """Return the most likely number of wrong entries, from random groups of falling size."""
        tests: list[tuple[float, bool]] = []
        size = len(others) // 2
        while size > 1 and self._search.evaluations < _MOST_EVALUATIONS:
            hits = 0
            for _ in range(_GROUPS):
                shuffled = torch.randperm(len(others), generator=generator)
                hit = self._lasting(others[shuffled[:size]], step) is not None
                hits += hit
                tests.append((size / len(others), hit))
            if not hits:
                break
            size //= 4
        return _most_likely(tests, len(others))

    def _described(
        self, entry: int, step: float, found: int, count: float, *, exact: bool
    ) -> WrongEntry:
        search = self._search
        reals = 2 if search.value.is_complex() else 1
        total = search.value.numel()
        wrong = min(total, max(1, -(-found // reals), round(count / reals)))
        weighted = self._weighted(entry, step)
        where = _index(entry // reals, search.value)
        pinned = self._pin_output(entry, step)
        place, numeric, analytic, bound = weighted if pinned is None else pinned
        exact = exact and not self._is_half
        least = self._is_half and wrong < total
        return WrongEntry(where, place, numeric, analytic, bound, wrong, total, exact, least)

    def _weighted(self, entry: int, step: float) -> tuple[None, float, float, float]:
        deviation = self._search.deviation(torch.tensor([entry]), step)
        unit = float(self._search.direction[entry])
        analytic = float(self._search.gradient[entry])
        bound = _CLEARLY * deviation.rounding / abs(unit)
        return None, analytic + deviation.value / unit, analytic, bound

    def _pin_output(
        self, entry: int, step: float
    ) -> tuple[tuple[int, ...], float, float, float] | None:
        """Halve the cotangent: the derivatives along one entry are known for every output."""
        search = self._search
        numeric, errors = search.column(entry, step)
        weights = _flat(search.cotangent)
        analytic: Callable[[torch.Tensor], float] = lambda flat: float(  # noqa: E731
            search.vjp(_unflat(flat, search.tensor))[entry]
        )
        low, high = 0, weights.numel()
        whole = float((weights * numeric).sum()) - float(search.gradient[entry])
        while high - low > 1:
            middle = (low + high) // 2
            half = torch.zeros_like(weights)
            half[low:middle] = weights[low:middle]
            first = float((half * numeric).sum()) - analytic(half)
            if abs(first) >= abs(whole - first):
                high, whole = middle, first
            else:
                low, whole = middle, whole - first
        one = torch.zeros_like(weights)
        one[low] = 1.0
        seen, expected, bound = analytic(one), float(numeric[low]), float(errors[low])
        if not abs(expected - seen) > bound:
            # The whole deviates and no entry does by itself: backward is not linear.
            return None
        reals = 2 if search.tensor.is_complex() else 1
        return _index(low // reals, search.tensor), expected, seen, bound


def _most_likely(tests: Sequence[tuple[float, bool]], total: int) -> int:
    """Return the number of wrong entries that makes these hits and misses most likely."""
    best, most = 1, -math.inf
    candidate = 1.0
    while candidate <= total:
        likelihood = 0.0
        for share, hit in tests:
            missed = candidate * math.log1p(-share)
            likelihood += math.log(-math.expm1(missed)) if hit else missed
        if likelihood > most:
            best, most = round(candidate), likelihood
        candidate *= 1.25
    return best


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the entries as a flat list of real numbers in double precision."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1).double()


def _unflat(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Undo ``_flat`` in the shape and type of ``like``."""
    if like.is_complex():
        pairs = torch.view_as_complex(flat.reshape(-1, 2).contiguous())
        return pairs.reshape(like.shape).to(like.dtype)
    return flat.reshape(like.shape).to(like.dtype)


def _index(entry: int, like: torch.Tensor) -> tuple[int, ...]:
    if not like.dim():
        return ()
    return tuple(int(part) for part in torch.unravel_index(torch.tensor(entry), like.shape))
