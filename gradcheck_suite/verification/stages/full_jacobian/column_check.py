"""Confirm columns of an analytic Jacobian, many with one pair of evaluations.

Columns move together by random amounts, and what the outputs differ by is compared with what the
analytic columns add up to (R. Freivalds, "Probabilistic machines can use less running time", 1977).
A wrong entry shows as if its column had moved alone, at the same absolute bound, as every column
moves by at least one step. Only wrong entries of one row in several columns could cancel; every
group so moves twice, by other amounts. What does not agree is left to be measured column by
column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.directions import generator_for, random_signs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.verification.stages.full_jacobian.numeric import NumericJacobian

__all__ = ["CheckedColumns", "check_columns"]

_STREAM = 7030
"""Seed of the draws by which groups move; any number does that no other stream uses."""
_COMPANIES = (16, 4)
"""How many columns that share outputs move together. The more they are, the longer the step in
their common direction: third derivatives then show, and the group is measured apart. Where too many
groups fail, smaller ones are tried."""
_DRAWS = 2
"""How often each group moves, by other amounts each time: wrong entries of one row that cancel in
one draw do not in the other."""
_LEAST_GAIN = 2
"""Groups are tried where they take one evaluation at most for this many that columns by themselves
would take: less of a gain is not worth a failure."""
_TOLERATED = 0.5
"""The share of groups that may fail before smaller ones are tried. A bound on cost: beyond it most
columns would be measured twice."""
_BLOCK = 4
"""As many groups' sums are computed in one product of matrices: the fastest of 1 to 16."""


@dataclass(frozen=True, slots=True)
class CheckedColumns:
    """Columns that agree with the differences of groups of columns.

    Attributes:
        columns: for each column whether it is confirmed.
        moved: by how much each was moved ahead and back.
        largest: for each output the largest deviation of half its difference in a group that
            agrees, from what the analytic columns add up to.
        deviations: those of each group, ``[groups, outputs]``, if they were to be kept.
        group: for each column the group that it was in, or -1.
    """

    columns: torch.Tensor
    moved: torch.Tensor
    largest: torch.Tensor
    deviations: torch.Tensor | None
    group: torch.Tensor


def check_columns(
    dense: torch.Tensor,
    sets: torch.Tensor | None,
    numeric: NumericJacobian,
    *,
    first: int,
    step: float,
    allowed: torch.Tensor,
    late: Callable[[], bool],
    keep: bool,
) -> CheckedColumns | None:
    """Confirm as many columns as possible.

    Args:
        dense: the transposed analytic Jacobian, ``[columns, outputs]``.
        sets: ``[sets, places]``, columns that reach different outputs, or -1 for none; None if
            every column is a set of its own.
        numeric: evaluates the function.
        first: the entry of the variable that column 0 belongs to.
        step: the least that an entry moves.
        allowed: what the difference of each output may deviate by; infinite where it is no number.
        late: whether the time is up.
        keep: whether the deviations of all groups are returned.

    Returns:
        What was confirmed; None if there is nothing to gain, or the function fails off the given
        point.
    """
    count = len(dense) if sets is None else len(sets)
    for company in _COMPANIES:
        if _DRAWS * -(-count // company) * _LEAST_GAIN > count:
            continue
        run = _Run(dense, numeric, first=first, step=step, allowed=allowed, late=late)
        try:
            found = run.compared(sets, company, keep=keep)
        except _FailsNearBy:
            return None
        if found is not None:
            return found
    return None


class _FailsNearBy(Exception):  # noqa: N818 - it says what the user's function does
    """The user's function raises off the given point."""


class _Run:
    def __init__(
        self,
        dense: torch.Tensor,
        numeric: NumericJacobian,
        *,
        first: int,
        step: float,
        allowed: torch.Tensor,
        late: Callable[[], bool],
    ) -> None:
        self._dense = dense
        self._numeric = numeric
        self._first = first
        self._step = step
        self._allowed = allowed
        self._unknown = None if bool(torch.isfinite(allowed).all()) else torch.isinf(allowed)
        self._late = late

    def compared(
        self, sets: torch.Tensor | None, company: int, *, keep: bool
    ) -> CheckedColumns | None:
        """Confirm columns in groups of so many sets; None if too many groups fail."""
        count = len(self._dense)
        generator = generator_for(_STREAM, company, self._first)
        members = (
            _neighbours(count, company) if sets is None else _shuffled(sets, company, generator)
        )
        groups, places = members.shape
        weights = random_signs(torch.empty(groups, _DRAWS, places, dtype=torch.float64), generator)
        weights += torch.where(weights < 0.0, -0.5, 0.5)
        columns = torch.zeros(count, dtype=torch.bool)
        moved = torch.zeros(count, dtype=torch.float64)
        group = torch.full((count,), -1)
        largest = torch.zeros_like(self._allowed)
        kept: list[torch.Tensor] = []
        failed = 0
        entries = torch.where(members < 0, -1, members + self._first)
        for part, differences, displaced in self._evaluated(entries, weights):
            deviations = differences - (
                self._gathered(members[part], displaced)
                if sets is not None
                else self._in_order(part.start * company, displaced)
            )
            if self._unknown is not None:
                deviations[..., self._unknown] = 0.0
            apart = deviations.abs()
            fits = apart <= self._allowed
            everything = bool(fits.all())
            if everything:
                inside = members[part] >= 0
            else:
                good = fits.flatten(1).all(dim=1)
                apart = apart[good]
                inside = (members[part] >= 0) & good.cpu().unsqueeze(1)
                failed += int((~good).sum())
            if len(apart):
                largest = torch.maximum(largest, apart.flatten(0, 1).amax(dim=0))
            row, place = torch.nonzero(inside, as_tuple=True)
            column = members[part][row, place]
            columns[column] = True
            moved[column] = displaced[:, 0].cpu()[row, place] / 2.0
            group[column] = part.start + row
            if keep:
                kept.append(deviations[:, 0] / 2.0)
            if failed > _TOLERATED * part.stop:
                return None
            if self._late():
                break
        return CheckedColumns(
            columns, moved, largest / 2.0, torch.cat(kept) if keep else None, group
        )

    def _evaluated(
        self, entries: torch.Tensor, weights: torch.Tensor
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        try:
            yield from self._numeric.together(entries, weights, self._step)
        except Exception as error:
            raise _FailsNearBy from error

    def _in_order(self, start: int, displaced: torch.Tensor) -> torch.Tensor:
        """Return what the columns of each group add up to, if they are neighbours.

        Args:
            start: the first column of the first group.
            displaced: ``[groups, draws, company]``.
        """
        groups, draws, company = displaced.shape
        weights = displaced.to(self._dense.dtype)
        rows = self._dense[start : start + groups * company]
        blocks = len(rows) // (company * _BLOCK)
        whole = blocks * _BLOCK
        # A matrix of zeros and a few groups' weights along its diagonal: products of so few rows
        # as a group has draws are not what BLAS is made for.
        diagonal = weights.new_zeros(blocks, _BLOCK, draws, _BLOCK, company)
        place = torch.arange(_BLOCK)
        blocked = weights[:whole].reshape(blocks, _BLOCK, draws, company)
        diagonal[:, place, :, place] = blocked.transpose(0, 1)
        shape = (blocks, _BLOCK * company, rows.shape[1])
        strides = (_BLOCK * company * rows.stride(0), *rows.stride())
        shaped = rows.as_strided(shape, strides, rows.storage_offset())
        totals = torch.bmm(diagonal.view(blocks, _BLOCK * draws, _BLOCK * company), shaped)
        total = totals.view(whole, draws, rows.shape[1])
        rest = []
        for group in range(whole, groups):
            members = rows[group * company : (group + 1) * company]
            rest.append(weights[group, :, : len(members)] @ members)
        # Sums in the Jacobian's own type round far below what its function's values do.
        return (torch.cat([total, torch.stack(rest)]) if rest else total).double()

    def _gathered(self, members: torch.Tensor, displaced: torch.Tensor) -> torch.Tensor:
        """Return what the columns of each group add up to, ``[groups, draws, outputs]``."""
        groups, places = members.shape
        chosen = members.clamp(min=0).reshape(-1)
        rows = self._dense[chosen.to(self._dense.device)].reshape(groups, places, -1)
        return torch.bmm(displaced.to(rows.dtype), rows).double()


def _neighbours(count: int, company: int) -> torch.Tensor:
    """Cut columns into groups, ``[groups, company]``; the last is filled up with -1."""
    members = torch.arange(-(-count // company) * company).reshape(-1, company)
    return torch.where(members < count, members, -1)


def _shuffled(sets: torch.Tensor, company: int, generator: torch.Generator) -> torch.Tensor:
    """Put sets together at random, ``[groups, company * places]``."""
    groups = -(-len(sets) // company)
    padded = torch.full((groups * company, sets.shape[1]), -1)
    padded[: len(sets)] = sets[torch.randperm(len(sets), generator=generator)]
    return padded.reshape(groups, company * sets.shape[1])
