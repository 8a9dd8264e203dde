"""Columns of a Jacobian by central differences, many at a time.

One buffer holds two copies of the variable for each column; only one cell of each copy is
written, and restored afterwards. ``torch.func.vmap`` evaluates all copies in one go where it can
and gives what single calls give; elsewhere the function is called in a loop, without recording.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.directions import generator_for, random_signs
from gradcheck_suite.verification.numerics.evaluation_point import Point, evaluate, match_outputs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["Columns", "Grouping", "NumericJacobian", "group_columns"]

_FIRST_CELLS = 2**17
"""How many entries the first chunk of copies has, 1 MiB in float64: what is fastest is then
searched for. Only speed depends on it."""
_FEWEST = 16
"""How many columns a chunk has at least, memory allowing. Chosen; only speed depends on it."""
_GROWTH = 4
"""By what factor chunks grow or shrink in the search for the fastest size. Only speed depends on
it."""
_WITHIN = 16
"""What the function allocates between input and output, in units of both together: a guess on the
safe side, which only keeps chunks away from the memory limit."""
_SAME = 256.0
"""How many roundings (eps) of the largest value a batched evaluation may differ by from a single
one, as for backward in ``analytic``."""
_MOST_CELLS = 2**24
"""Up to so many entries a Jacobian's pattern is read off: 64 MiB as float32. A bound on memory."""
_DENSE = 0.5
"""The share of entries that are not zero from which on grouping gains nothing: at more than half,
no two blocks of one size can be apart."""
_STREAM = 7020
"""Seed of the marks of outputs; any number does that no other stream uses."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Differences along some entries of one variable.

    Attributes:
        entries: flat indices of the entries; one row each below.
        slopes: central differences of all outputs, flat and one after the other.
        widths: half the distance that each entry was moved.
        high: the outputs with the entry moved ahead.
        low: the outputs with the entry moved back.
    """

    entries: torch.Tensor
    slopes: torch.Tensor
    widths: torch.Tensor
    high: torch.Tensor
    low: torch.Tensor

    def bends(self, centre: torch.Tensor) -> torch.Tensor:
        """Return second differences over the step: zero at step zero if there is no kink."""
        rise, fall = self.high.double() - centre, self.low.double() - centre
        return (rise + fall) / self.widths.unsqueeze(1)

    def chosen(self, mask: torch.Tensor) -> Columns:
        """Return some of the columns."""
        return Columns(
            self.entries[mask.cpu()],
            self.slopes[mask],
            self.widths[mask],
            self.high[mask],
            self.low[mask],
        )

    @staticmethod
    def joined(parts: Iterator[Columns]) -> Columns:
        """Put columns together again that came in several parts."""
        found = list(parts)
        return Columns(
            torch.cat([part.entries for part in found]),
            torch.cat([part.slopes for part in found]),
            torch.cat([part.widths for part in found]),
            torch.cat([part.high for part in found]),
            torch.cat([part.low for part in found]),
        )


class NumericJacobian:
    """Differences of all outputs of a subject along single entries of one variable."""

    def __init__(
        self, subject: PureFunction, point: Point, variable: int, *, max_memory: int
    ) -> None:
        self._subject = subject
        self._point = point
        self._variable = variable
        self._value = point.values[variable]
        self.centre = torch.cat([output.tensor.reshape(-1) for output in point.outputs])
        cells = self._value.numel() + self.centre.numel()
        item = max(self._value.element_size(), self.centre.element_size())
        self._most = max(1, max_memory // (2 * item * _WITHIN * cells))
        widest = max(self._value.numel(), self.centre.numel())
        self._chunk = min(max(_FEWEST, _FIRST_CELLS // widest), self._most)
        self._batched: bool | None = None
        self._pace: dict[int, float] = {}

    @property
    def is_batched(self) -> bool:
        """Return whether the copies are evaluated in one go."""
        return bool(self._batched)

    def columns(self, entries: torch.Tensor, step: float) -> Iterator[Columns]:
        """Yield the differences along these entries, as many at a time as go fastest."""
        start = 0
        while start < entries.numel():
            size = 1 if self._batched is False else self._chunk
            chosen = entries[start : start + size]
            began = time.perf_counter()
            yield self._checked(chosen, step)
            if self._batched and chosen.numel() == size:
                self._tune(size, (time.perf_counter() - began) / size)
            start += size

    def together(
        self, groups: torch.Tensor, weights: torch.Tensor, step: float
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield how the outputs differ when several entries move at a time.

        Args:
            groups: ``[groups, places]``, the entries that move together; -1 for none.
            weights: ``[groups, draws, places]``, by how many steps each moves, each draw apart.
            step: the step.

        Yields:
            For some groups at a time which they are, the outputs' differences, ``[groups, draws,
            outputs]``, and the distances between the entries' two places, shaped as the weights.
        """
        value = self._value.reshape(-1)
        draws, start = weights.shape[1], 0
        while start < groups.shape[0]:
            size = max(1, (_FEWEST if self._batched is False else self._chunk) // draws)
            part = slice(start, min(groups.shape[0], start + size))
            chosen = groups[part].repeat_interleave(draws, 0)
            present = chosen >= 0
            entries = chosen.clamp(min=0)
            shift = (step * weights[part].flatten(0, 1)).to(value)
            ahead, behind = value[entries] + shift, value[entries] - shift
            count = len(entries)
            began = time.perf_counter()
            place, which = torch.nonzero(present, as_tuple=True)
            moved = entries[place, which]
            rows = self._rows(count)
            rows[place, moved] = ahead[place, which]
            rows[count + place, moved] = behind[place, which]
            shaped = rows.view(2 * count, *self._value.shape)
            values = self._all_at_once(shaped) if self._batched is not False else None
            if values is None:
                values = self._looped(shaped)
            rows[place, moved] = rows[count + place, moved] = value[moved]
            if self._batched and count == self._chunk:
                self._tune(count, (time.perf_counter() - began) / count)
            differences = (values[:count] - values[count:]).double()
            displaced = (ahead.double() - behind.double()).where(present.to(value.device), 0.0)
            shape = (part.stop - start, draws, -1)
            yield part, differences.reshape(shape), displaced.reshape(shape)
            start = part.stop

    def _looped(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([self._single(row) for row in rows.unbind()])

    def _single(self, moved: torch.Tensor) -> torch.Tensor:
        values = [value.clone() for value in self._point.values]
        values[self._variable] = moved.clone()
        produced = evaluate(self._subject, values, recorded=self._point.recorded)
        return _flat(match_outputs(self._subject, self._point.outputs, produced))

    def _all_at_once(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Evaluate rows in one go; None if it turns out, the first time, that this won't do."""
        if self._batched:
            return self._evaluate(rows)
        self._batched = False
        if self._point.recorded:
            return None
        try:
            values = self._evaluate(rows)
        except Exception:  # noqa: BLE001 - vmap refuses functions in any way
            return None
        self._batched = _is_same(values[0], self._single(rows[0]))
        return values if self._batched else None

    def _checked(self, entries: torch.Tensor, step: float) -> Columns:
        """Measure; the first time, compare with a single call what was evaluated in one go."""
        if self._batched is None and self._point.recorded:
            self._batched = False
        if self._batched is not None:
            return self._differences(entries, step)
        self._batched = True
        try:
            together = self._differences(entries, step)
        except Exception:  # noqa: BLE001 - vmap refuses functions in any way
            self._batched = False
            return self._differences(entries, step)
        if not self._agrees(together, step):
            self._batched = False
            return self._differences(entries, step)
        return together

    def _tune(self, size: int, pace: float) -> None:
        """Climb to the chunk size that goes fastest: caches decide, and they differ."""
        if size in self._pace:
            return
        self._pace[size] = pace
        best = min(self._pace, key=lambda known: self._pace[known])
        for other in (best * _GROWTH, best // _GROWTH):
            if other not in self._pace and _FEWEST <= other <= self._most:
                self._chunk = other
                return
        self._chunk = best

    def _differences(self, entries: torch.Tensor, step: float) -> Columns:
        count = entries.numel()
        value = self._value.reshape(-1)
        ahead, behind = value[entries] + step, value[entries] - step
        widths = (ahead.double() - behind.double()) / 2.0
        if self._batched:
            rows = self._rows(count)
            place = torch.arange(count, device=rows.device)
            rows[place, entries] = ahead
            rows[count + place, entries] = behind
            values = self._evaluate(rows.view(2 * count, *self._value.shape))
            rows[place, entries] = rows[count + place, entries] = value[entries]
            high, low = values[:count], values[count:]
        else:
            high, low = self._one_by_one(entries, ahead, behind)
        # Values this close are subtracted without rounding (Sterbenz 1974), whatever their type.
        slopes = (high - low).double() / (2.0 * widths).unsqueeze(1)
        return Columns(entries, slopes, widths, high, low)

    def _rows(self, count: int) -> torch.Tensor:
        """Return the buffer of 2 * count copies of the variable, made anew if it has grown."""
        known: torch.Tensor | None = getattr(self, "_buffer", None)
        if known is None or known.shape[0] < 2 * count:
            known = self._value.reshape(1, -1).repeat(2 * count, 1)
            self._buffer = known
        return known[: 2 * count]

    def _evaluate(self, rows: torch.Tensor) -> torch.Tensor:
        def call(row: torch.Tensor) -> torch.Tensor:
            values = list(self._point.values)
            values[self._variable] = row
            return _flat(match_outputs(self._subject, self._point.outputs, self._subject(values)))

        with torch.no_grad(), warnings.catch_warnings():
            # vmap warns where it has to loop itself, which is as good as our loop.
            warnings.simplefilter("ignore")
            return torch.func.vmap(call, randomness="same")(rows)

    def _one_by_one(
        self, entries: torch.Tensor, ahead: torch.Tensor, behind: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        results: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        values = [value.clone() for value in self._point.values]
        moved = self._value.clone()
        flat = moved.view(-1) if moved.is_contiguous() else None
        values[self._variable] = moved
        for place, entry in enumerate(entries.tolist()):
            where = torch.unravel_index(torch.tensor(entry), moved.shape) if moved.dim() else ()
            before = self._value[where]
            for side, found in ((ahead, results[0]), (behind, results[1])):
                if flat is not None:
                    flat[entry] = side[place]
                else:
                    moved[where] = side[place]
                produced = evaluate(self._subject, values, recorded=self._point.recorded)
                found.append(_flat(match_outputs(self._subject, self._point.outputs, produced)))
            moved[where] = before
        return torch.stack(results[0]), torch.stack(results[1])

    def _agrees(self, together: Columns, step: float) -> bool:
        """Return whether evaluating in one go gave what a single call gives."""
        moved = self._value.clone()
        entry = int(together.entries[0])
        where = torch.unravel_index(torch.tensor(entry), moved.shape) if moved.dim() else ()
        moved[where] = self._value[where] + step
        return _is_same(together.high[0], self._single(moved))


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    if len(tensors) == 1:
        return tensors[0].reshape(-1)
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _is_same(one: torch.Tensor, single: torch.Tensor) -> bool:
    size = float(torch.nan_to_num(single).abs().max()) if single.numel() else 0.0
    allowed = _SAME * torch.finfo(single.dtype).eps * size
    difference = (one.double() - single.double()).abs()
    return bool((torch.nan_to_num(difference, nan=0.0) <= allowed).all())


@dataclass(frozen=True, slots=True)
class Grouping:
    """Columns that are measured together, as they reach different outputs.

    Attributes:
        columns: ``[groups, blocks]``, the column of each block in each group, or -1 for none.
        weights: by how many steps each moves.
        block_of_output: for each output the block that reaches it, or -1.
    """

    columns: torch.Tensor
    weights: torch.Tensor
    block_of_output: torch.Tensor


def group_columns(dense: torch.Tensor) -> Grouping | None:
    """Group columns that share no output.

    Rows of a batch, channels, or the entries of an elementwise function do not mix: the Jacobian
    falls into blocks, and one evaluation serves a column of each (Curtis, Powell and Reid, "On the
    estimation of sparse Jacobian matrices", 1974). The blocks are read off the analytic Jacobian,
    which may be wrong; every column so moves by a random amount of its own, and whatever reaches
    another block than it should shows as a deviation.

    Args:
        dense: the transposed analytic Jacobian, ``[columns, outputs]``.

    Returns:
        The grouping, or None if there is nothing to gain.
    """
    count, outputs = dense.shape
    if not 0 < dense.numel() <= _MOST_CELLS or count < 2:  # noqa: PLR2004 - one needs no group
        return None
    used = dense.t() != 0
    # Columns of one block reach the same outputs: sum up a random number for each that is reached.
    generator = generator_for(_STREAM, count, outputs)
    marks = torch.stack([torch.rand(outputs, generator=generator), torch.ones(outputs)], dim=1)
    sums = marks.to(dense.device).t() @ used.to(marks.dtype)
    if float(sums[1].sum()) > _DENSE * dense.numel():
        return None
    names, block = torch.unique(sums[0], return_inverse=True)
    if len(names) < 2 or len(names) > outputs + 1:  # noqa: PLR2004 - one block is no gain
        return None
    first = torch.full((len(names),), count, device=dense.device).scatter_reduce(
        0, block, torch.arange(count, device=dense.device), reduce="amin"
    )
    reached, owners = torch.nonzero(used[:, first], as_tuple=True)
    block_of_output = torch.full((outputs,), -1, device=dense.device)
    block_of_output[reached] = owners
    if int((block_of_output >= 0).sum()) != len(reached):
        return None
    order = torch.argsort(block, stable=True)
    sizes = torch.bincount(block)
    starts = torch.cumsum(sizes, 0) - sizes
    rank = torch.empty_like(block)
    rank[order] = torch.arange(count) - starts[block[order]]
    columns = torch.full((int(sizes.max()), len(names)), -1)
    columns[rank, block] = torch.arange(count)
    weights = random_signs(torch.empty(columns.shape, dtype=torch.float64), generator)
    return Grouping(columns, weights, block_of_output)
