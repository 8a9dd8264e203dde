"""Compare whole Jacobians entry by entry, a block of columns at a time.

Every entry is measured at one step. One that differs by more than rounding is measured at two
more, so that truncation and kinks are told from wrong gradients: its error is what the steps
disagree by. Two dense Jacobians never exist at once, and one only below the memory limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.diagnosis.wrong_entry import WrongEntry
from gradcheck_suite.verification.numerics.derivative import SAFETY
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs, scales_of
from gradcheck_suite.verification.stages.full_jacobian.analytic import AnalyticJacobian, Block
from gradcheck_suite.verification.stages.full_jacobian.column_check import (
    CheckedColumns,
    check_columns,
)
from gradcheck_suite.verification.stages.full_jacobian.numeric import (
    Columns,
    Grouping,
    NumericJacobian,
    group_columns,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.verification.numerics.evaluation_point import Point
    from gradcheck_suite.verification.numerics.precision import Precision
    from gradcheck_suite.verification.progress import Deadline
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["Comparison", "compare_jacobians"]

_ROUNDINGS = 8.0
"""How many roundings (eps) of the largest entry of an output a value of it may be off by, and how
many times what the last bits of the inputs change a right gradient may be. Chosen: with ``SAFETY``
an entry is wrong from 32 of them on."""
_LADDER = 4.0
"""By what factor the two further steps are larger and smaller than the first: from one to the next
truncation falls to a sixteenth. Chosen."""
_KEPT = 2**16
"""Jacobians of up to so many entries are kept for the report, 512 KiB each in float64. A bound on
memory."""
_FEW = 2**11
"""Up to so many columns are not grouped by the pattern first: reading it off takes longer than what
it saves. Only speed depends on it."""
_NUDGE = 7010
"""Seed of the last bits; any number does that no other stream uses."""


@dataclass(slots=True)
class Comparison:
    """What the comparison of all entries of one (output, variable) pair has shown so far.

    Attributes:
        shape: entries of the output, entries of the variable.
        compared: how many entries were compared.
        wrong: how many of them differ by clearly more than their error.
        undecided: how many could be told neither right nor wrong.
        worst: the wrong entry with the largest difference.
        largest: the largest difference of any entry.
        wrong_outputs: for each entry of the output whether a wrong entry is in its row.
        wrong_inputs: for each entry of the variable whether a wrong entry is in its column.
        numeric_norm: the Frobenius norm of the numeric Jacobian, squared.
        bound_norm: that of the entries' errors, squared.
        numeric: the numeric Jacobian, ``[outputs, inputs]``, if it is small enough to keep.
        analytic: the analytic one, likewise.
    """

    shape: tuple[int, int]
    compared: int = 0
    wrong: int = 0
    undecided: int = 0
    worst: WrongEntry | None = None
    largest: float = 0.0
    wrong_outputs: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    wrong_inputs: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    numeric_norm: float = 0.0
    bound_norm: float = 0.0
    numeric: torch.Tensor | None = None
    analytic: torch.Tensor | None = None

    @property
    def complete(self) -> bool:
        """Return whether every entry was compared."""
        return self.compared == self.shape[0] * self.shape[1]

    @property
    def relative_bound(self) -> float:
        """The error of the numeric Jacobian relative to its size, both as Frobenius norms."""
        if self.numeric_norm == 0.0:
            return 0.0 if self.bound_norm == 0.0 else math.inf
        return math.sqrt(self.bound_norm / self.numeric_norm)


def compare_jacobians(
    subject: PureFunction,
    point: Point,
    *,
    precision: Precision,
    max_memory: int,
    deadline: Deadline,
    keep: int = _KEPT,
) -> dict[tuple[int, int], Comparison]:
    """Compare every entry of every Jacobian of a subject.

    Args:
        subject: the function.
        point: where.
        precision: what can be asked of the numbers.
        max_memory: bytes that may be used at a time.
        deadline: when to stop; comparisons then are not ``complete``.
        keep: Jacobians of up to so many entries are kept in the result.

    Returns:
        A comparison for each (output, variable) pair.
    """
    return _Comparer(
        subject, point, precision=precision, max_memory=max_memory, deadline=deadline, keep=keep
    ).run()


class _Comparer:
    def __init__(
        self,
        subject: PureFunction,
        point: Point,
        *,
        precision: Precision,
        max_memory: int,
        deadline: Deadline,
        keep: int,
    ) -> None:
        self._subject = subject
        self._point = point
        self._precision = precision
        self._max_memory = max_memory
        self._deadline = deadline
        self._scales = scales_of(point.values)
        self._spans: list[tuple[int, int]] = []
        start = 0
        for output in point.outputs:
            self._spans.append((start, start + output.tensor.numel()))
            start += output.tensor.numel()
        self._rows = start
        self._centre = torch.cat([output.tensor.reshape(-1) for output in point.outputs]).double()
        self._size = torch.zeros_like(self._centre)
        for low, high in self._spans:
            known = self._centre[low:high]
            finite = known[torch.isfinite(known)].abs()
            self._size[low:high] = finite.max() if finite.numel() else 0.0
        self._finite = torch.isfinite(self._centre)
        self._noise = torch.cat(
            [
                (torch.zeros_like(output.tensor) if noise is None else noise).reshape(-1).double()
                for output, noise in zip(point.outputs, point.noise, strict=True)
            ]
        )
        # What rounding may do to a value of each output, and to the difference of two.
        self._values_rounding = _ROUNDINGS * precision.eps * self._size + 2.0 * self._noise
        self._allowed = torch.where(self._finite, 2.0 * self._values_rounding, math.inf)
        self._found = {
            (output, variable): self._empty(high - low, value.numel(), keep)
            for output, (low, high) in enumerate(self._spans)
            for variable, value in enumerate(point.values)
            if value.numel()
        }
        self._perturbed: tuple[Block, torch.Tensor] | None = None

    @staticmethod
    def _empty(outputs: int, inputs: int, keep: int) -> Comparison:
        kept = outputs * inputs <= keep
        return Comparison(
            shape=(outputs, inputs),
            wrong_outputs=torch.zeros(outputs, dtype=torch.bool),
            wrong_inputs=torch.zeros(inputs, dtype=torch.bool),
            numeric=torch.zeros(outputs, inputs, dtype=torch.float64) if kept else None,
            analytic=torch.zeros(outputs, inputs, dtype=torch.float64) if kept else None,
        )

    def run(self) -> dict[tuple[int, int], Comparison]:
        """Compare block by block."""
        analytic = AnalyticJacobian(self._subject, self._point)
        numeric: dict[int, NumericJacobian] = {}
        for blocks in self._groups():
            dense = analytic.block(blocks, max_memory=self._max_memory // 4)
            for block, rows in zip(blocks, dense, strict=True):
                if self._deadline.passed:
                    return self._found
                if block.variable not in numeric:
                    numeric[block.variable] = NumericJacobian(
                        self._subject,
                        self._point,
                        block.variable,
                        max_memory=self._max_memory // 4,
                    )
                self._compare(block, numeric[block.variable], rows.t())
        return self._found

    def _groups(self) -> Iterator[list[Block]]:
        """Cut the columns into groups whose analytic rows fit half of the memory at a time."""
        most = self._max_memory // 2
        group: list[Block] = []
        taken = 0
        for variable, value in enumerate(self._point.values):
            column = max(1, self._rows * value.element_size())
            together = max(1, most // column)
            for low in range(0, value.numel(), together):
                block = Block(variable, low, min(value.numel(), low + together))
                if group and taken + block.size * column > most:
                    yield group
                    group, taken = [], 0
                group.append(block)
                taken += block.size * column
        if group:
            yield group

    def _compare(self, block: Block, numeric: NumericJacobian, dense: torch.Tensor) -> None:
        step = self._precision.eps ** (1.0 / 3.0) * self._scales[block.variable]
        entries = self._told_together(block, numeric, dense, step)
        done = 0
        for columns in numeric.columns(entries, step):
            chosen = entries[done : done + columns.entries.numel()] - block.low
            expected = dense[done : done + columns.entries.numel()]
            if entries.numel() < block.size:
                expected = dense[chosen]
            done += columns.entries.numel()
            rounding = self._rounding(columns)
            slopes, bounds = columns.slopes, rounding
            difference = (slopes - expected).abs_()
            right = difference <= bounds
            if not bool(right.all()):
                larger = torch.maximum(slopes.abs(), expected.abs())
                doubtful = ~(difference <= bounds + self._precision.rtol * larger) & self._finite
                again = doubtful.any(dim=1)
                if bool(again.any()):
                    slopes, bounds = slopes.clone(), rounding.clone()
                    slopes[again], bounds[again] = self._measured(
                        numeric, columns.chosen(again), step
                    )
                    difference = (slopes - expected).abs_()
                right = self._judged(block, columns.entries, slopes, expected, bounds)
                # What agrees only because kinks or large derivatives blur it is not right yet.
                blurred = bounds > SAFETY * rounding
                blurred &= bounds > self._precision.resolution * larger
                right = torch.where(blurred & (right == 1) & self._finite, -1, right)
            seen = _Seen(columns.entries, slopes, expected, bounds, difference, right)
            self._note(block.variable, seen)
            if self._deadline.passed:
                return

    def _told_together(
        self, block: Block, numeric: NumericJacobian, dense: torch.Tensor, step: float
    ) -> torch.Tensor:
        """Compare columns together; return the entries whose columns have to be measured alone."""
        everything = torch.arange(block.low, block.high)
        # Reading the pattern of few columns off takes longer than what it saves.
        grouping = group_columns(dense) if block.size > _FEW else None
        confirmed = check_columns(
            dense,
            None if grouping is None else grouping.columns,
            numeric,
            first=block.low,
            step=step,
            allowed=self._allowed,
            late=lambda: self._deadline.passed,
            keep=any(
                self._found[output, block.variable].numeric is not None
                for output in range(len(self._spans))
            ),
        )
        done = torch.zeros(block.size, dtype=torch.bool)
        if confirmed is not None:
            self._note_confirmed(block, dense, confirmed)
            done |= confirmed.columns
        if not bool(done.all()) and not self._deadline.passed:
            grouping = group_columns(dense) if grouping is None else grouping
            if grouping is not None:
                done |= self._grouped(block, numeric, dense, step, grouping=grouping, done=done)
        return everything[~done]

    def _note_confirmed(self, block: Block, dense: torch.Tensor, confirmed: CheckedColumns) -> None:
        columns = confirmed.columns
        if not bool(columns.any()):
            return
        # One over the distance that each column was moved.
        shares = 1.0 / confirmed.moved[columns]
        spread = float(shares.square().sum())
        kept = dense if bool(columns.all()) else dense[columns.to(dense.device)]
        for output, (low, high) in enumerate(self._spans):
            found = self._found[output, block.variable]
            part = slice(low, high)
            found.compared += len(shares) * (high - low)
            found.numeric_norm += _squares(kept[:, part])
            allowed = self._allowed[part]
            allowed = allowed[torch.isfinite(allowed)]
            found.bound_norm += spread * float(allowed.square().sum()) / 4.0
            beyond = float(shares.abs().max()) * _largest(confirmed.largest[part])
            found.largest = max(found.largest, beyond)
            if found.numeric is None or found.analytic is None or confirmed.deviations is None:
                continue
            expected = kept[:, part].double().cpu()
            off = confirmed.deviations[confirmed.group[columns], part].cpu()
            place = torch.nonzero(columns).flatten() + block.low
            found.numeric[:, place] = (expected + off * shares.unsqueeze(1)).t()
            found.analytic[:, place] = expected.t()

    def _grouped(
        self,
        block: Block,
        numeric: NumericJacobian,
        dense: torch.Tensor,
        step: float,
        *,
        grouping: Grouping,
        done: torch.Tensor,
    ) -> torch.Tensor:
        """Measure columns together that share no output; return which of them are right."""
        columns, blocks = grouping.columns, grouping.block_of_output
        columns = torch.where((columns >= 0) & ~done[columns.clamp(min=0)], columns, -1)
        left = (columns >= 0).any(dim=1)
        columns, weights = columns[left], grouping.weights[left]
        groups = torch.where(columns < 0, -1, columns + block.low)
        agreed = torch.zeros(block.size, dtype=torch.bool)
        try:
            parts = list(numeric.together(groups, weights.unsqueeze(1), step))
        except Exception:  # noqa: BLE001 - the user's function may fail off the given point
            return agreed
        differences = torch.cat([part[1].squeeze(1) for part in parts])
        displaced = torch.cat([part[2].squeeze(1) for part in parts])
        reached = blocks >= 0
        place = blocks.clamp(min=0)
        column = columns[:, place]
        reached = reached & (column >= 0)
        least = displaced.abs().where(displaced != 0.0, math.inf).amin(dim=1, keepdim=True)
        span = torch.where(reached, displaced[:, place], least)
        outputs = torch.arange(dense.shape[1])
        expected = dense[column.clamp(min=0), outputs].double().where(reached, 0.0)
        slopes = differences / span
        bounds = 2.0 * self._values_rounding / span.abs()
        difference = (slopes - expected).abs()
        small = self._precision.rtol * torch.maximum(slopes.abs(), expected.abs())
        right = (difference <= bounds + small) | ~self._finite
        good = right.all(dim=1)
        members = columns[good]
        agreed[members[members >= 0]] = True
        for output, (low, high) in enumerate(self._spans):
            part = slice(low, high)
            found = self._found[output, block.variable]
            found.compared += int(agreed.sum()) * (high - low)
            inside = reached[:, part][good]
            found.numeric_norm += _squares(slopes[:, part][good].where(inside, 0.0))
            found.bound_norm += _squares(bounds[:, part][good])
            found.largest = max(found.largest, _largest(difference[:, part][good]))
            if found.numeric is not None and found.analytic is not None:
                group, row = torch.nonzero(inside, as_tuple=True)
                place = column[:, part][good][group, row] + block.low
                found.numeric[row, place] = slopes[:, part][good][group, row].cpu()
                found.analytic[row, place] = expected[:, part][good][group, row].cpu()
        return agreed

    def _rounding(self, columns: Columns) -> torch.Tensor:
        """Return what rounding of the function's values may do to each slope."""
        return self._values_rounding / columns.widths.unsqueeze(1)

    def _measured(
        self, numeric: NumericJacobian, columns: Columns, step: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Measure some columns at a larger and a smaller step; return slopes and their errors."""
        coarse = Columns.joined(numeric.columns(columns.entries, step * _LADDER))
        fine = Columns.joined(numeric.columns(columns.entries, step / _LADDER))
        pairs = ((coarse, columns), (columns, fine))
        (value, bound), (other, second) = (self._extrapolated(*pair) for pair in pairs)
        better = second < bound
        return torch.where(better, other, value), torch.where(better, second, bound)

    def _extrapolated(self, large: Columns, small: Columns) -> tuple[torch.Tensor, torch.Tensor]:
        ratio = (large.widths / small.widths).unsqueeze(1)
        value = small.slopes + (small.slopes - large.slopes) / (ratio**2 - 1.0)
        rounding = self._rounding(small)
        bends = large.bends(self._centre), small.bends(self._centre)
        # A second difference rounds as one and two and one values do.
        kink = ((ratio * bends[1] - bends[0]) / (ratio - 1.0)).abs() - 4.0 * rounding
        bound = (value - small.slopes).abs() + rounding + kink.clamp(min=0.0)
        known = torch.isfinite(bound) & torch.isfinite(value)
        return value, torch.where(known, bound, math.inf)

    def _judged(
        self,
        block: Block,
        entries: torch.Tensor,
        slopes: torch.Tensor,
        expected: torch.Tensor,
        bounds: torch.Tensor,
    ) -> torch.Tensor:
        """Return 1 for right entries, 0 for wrong ones and -1 for those that can't be told."""
        difference = (slopes - expected).abs()
        small = self._precision.rtol * torch.maximum(slopes.abs(), expected.abs())
        right = difference <= bounds + small
        resolved = torch.isfinite(slopes) & torch.isfinite(bounds)
        wrong = (difference > SAFETY * bounds + small) | ~torch.isfinite(expected)
        wrong &= resolved & self._finite
        if bool(wrong.any()):
            wrong &= self._beyond_backward_rounding(block, entries, expected, difference)
        ruling = torch.where(right, 1, torch.where(wrong, 0, -1))
        return torch.where(self._finite, ruling, 1)

    def _note(self, variable: int, seen: _Seen) -> None:
        for output, (low, high) in enumerate(self._spans):
            part = seen.of_outputs(low, high)
            found = self._found[output, variable]
            found.compared += part.slopes.numel()
            found.numeric_norm += _squares(part.slopes)
            found.bound_norm += _squares(part.bounds)
            found.largest = max(found.largest, _largest(part.difference))
            if found.numeric is not None and found.analytic is not None:
                found.numeric[:, part.entries] = part.slopes.t().cpu()
                found.analytic[:, part.entries] = part.expected.t().double().cpu()
            if part.ruling.dtype == torch.bool:
                continue
            found.undecided += int((part.ruling < 0).sum())
            wrong = part.ruling == 0
            count = int(wrong.sum())
            if count:
                found.wrong += count
                found.wrong_outputs |= wrong.any(dim=0).cpu()
                found.wrong_inputs[part.entries] |= wrong.any(dim=1).cpu()
                self._note_worst(output, variable, part, wrong)

    def _note_worst(self, output: int, variable: int, part: _Seen, wrong: torch.Tensor) -> None:
        found = self._found[output, variable]
        before = found.worst
        ranked = torch.nan_to_num(part.difference, nan=math.inf, posinf=math.inf)
        row, column = divmod(int(torch.where(wrong, ranked, -1.0).argmax()), ranked.shape[1])
        if before is not None and not float(ranked[row, column]) > abs(
            before.numeric - before.analytic
        ):
            return
        value = self._point.values[variable]
        found.worst = WrongEntry(
            input_index=_index(int(part.entries[row]), value.shape),
            output_index=_index(column, self._point.outputs[output].tensor.shape),
            numeric=float(part.slopes[row, column]),
            analytic=float(part.expected[row, column]),
            bound=float(part.bounds[row, column]),
            count=0,
            total=value.numel(),
        )

    def _beyond_backward_rounding(
        self,
        block: Block,
        entries: torch.Tensor,
        expected: torch.Tensor,
        difference: torch.Tensor,
    ) -> torch.Tensor:
        """Say which differences are more than what rounding within backward may cause.

        Inputs that differ in their last bit are as good as the given ones: what their gradients
        differ by, no gradient can be blamed for.
        """
        if self._perturbed is None or self._perturbed[0] != block:
            try:
                (dense,) = AnalyticJacobian(
                    self._subject, self._point, self._nudged_values()
                ).block([block], max_memory=self._max_memory // 4)
            except Exception:  # noqa: BLE001 - the user's function may fail off the given point
                return torch.ones_like(difference, dtype=torch.bool)
            self._perturbed = block, dense.t()
        other = self._perturbed[1][entries - block.low].double()
        noise = torch.nan_to_num((other - expected).abs(), nan=0.0, posinf=0.0)
        return ~(difference <= _ROUNDINGS * noise)

    def _nudged_values(self) -> list[torch.Tensor]:
        values = []
        for index, value in enumerate(self._point.values):
            towards = torch.inf * random_signs(value, generator_for(_NUDGE, index))
            values.append(torch.where(value == 0, value, torch.nextafter(value, towards)))
        return values


@dataclass(frozen=True, slots=True)
class _Seen:
    """Some columns of both Jacobians: ``[columns, outputs]`` each.

    ``ruling`` is True where an entry is right; or 1 where it is, 0 where it is wrong and -1 where
    it can't be told.
    """

    entries: torch.Tensor
    slopes: torch.Tensor
    expected: torch.Tensor
    bounds: torch.Tensor
    difference: torch.Tensor
    ruling: torch.Tensor

    def of_outputs(self, low: int, high: int) -> _Seen:
        """Return the part that belongs to the entries of one output."""
        if (low, high) == (0, self.slopes.shape[1]):
            return self
        part = slice(low, high)
        return _Seen(
            self.entries,
            self.slopes[:, part],
            self.expected[:, part],
            self.bounds[:, part],
            self.difference[:, part],
            self.ruling[:, part],
        )


def _squares(values: torch.Tensor) -> float:
    total = float(torch.linalg.vector_norm(values)) ** 2
    if math.isfinite(total):
        return total
    return float(values.where(torch.isfinite(values), 0.0).square().sum())


def _largest(values: torch.Tensor) -> float:
    most = float(values.max()) if values.numel() else 0.0
    if math.isfinite(most):
        return most
    known = values[torch.isfinite(values)]
    return float(known.max()) if known.numel() else 0.0


def _index(entry: int, shape: Sequence[int]) -> tuple[int, ...]:
    if not shape:
        return ()
    return tuple(int(part) for part in torch.unravel_index(torch.tensor(entry), tuple(shape)))
