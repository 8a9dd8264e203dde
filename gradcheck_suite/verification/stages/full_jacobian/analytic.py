"""Rows of a Jacobian by autograd, many at a time.

``is_grads_batched`` runs one backward for many cotangents where vmap can follow it and gives what
single backwards give; elsewhere there is one backward for each row.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.evaluation_point import Point, match_outputs
from gradcheck_suite.verification.target.dense_views import dense

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["AnalyticJacobian", "Block"]

_CELLS = 2**20
"""How many float64 entries the rows of one batch of backwards have: 8 MiB. A bound on memory;
nothing but speed depends on it."""
_FEWEST, _MOST = 8, 256
"""How many backwards make a batch, at least and at most. Chosen; only speed depends on it."""
_SAME = 256.0
"""How many roundings (eps) of a row's largest entry a batched backward may differ by from a single
one: its kernels sum up in another order. As the contract asks of two backwards."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some columns of a Jacobian: the entries ``low`` to ``high`` of one variable."""

    variable: int
    low: int
    high: int

    @property
    def size(self) -> int:
        """The number of columns."""
        return self.high - self.low


class AnalyticJacobian:
    """Gradients of single entries of all outputs with respect to some variables.

    The function is called once and its graph kept, unless a second backward through it fails.
    """

    def __init__(
        self, subject: PureFunction, point: Point, values: Sequence[torch.Tensor] | None = None
    ) -> None:
        self._subject = subject
        self._point = point
        self._values = tuple(point.values if values is None else values)
        self._sizes = [output.tensor.numel() for output in point.outputs]
        self._graph: tuple[list[torch.Tensor], list[torch.Tensor]] | None = None
        self._batched: dict[int, bool] = {}
        self._keep = True
        self._buffer: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """The number of rows: the entries of all outputs."""
        return sum(self._sizes)

    def block(self, wanted: Sequence[Block], *, max_memory: int) -> list[torch.Tensor]:
        """Return all rows of some columns, ``[rows, columns]`` for each block of them.

        Args:
            wanted: the columns, of different variables.
            max_memory: bytes that may be used besides the result.
        """
        values = [self._values[block.variable] for block in wanted]
        results = [
            torch.empty(self.rows, block.size, dtype=value.dtype, device=value.device)
            for block, value in zip(wanted, values, strict=True)
        ]
        width = max(1, sum(value.numel() * value.element_size() for value in values))
        most = min(_MOST, max(1, max_memory // (2 * width)))
        chunk = min(most, max(_FEWEST, _CELLS * 8 // width))
        variables = [block.variable for block in wanted]
        start = 0
        for output, size in enumerate(self._sizes):
            for low in range(0, size, chunk):
                high = min(size, low + chunk)
                parts = self._rows(output, low, high, variables)
                for block, result in zip(wanted, results, strict=True):
                    part = parts.get(block.variable)
                    rows = slice(start + low, start + high)
                    result[rows] = 0.0 if part is None else part[:, block.low : block.high]
            start += size
        return results

    def _rows(
        self, output: int, low: int, high: int, variables: Sequence[int]
    ) -> dict[int, torch.Tensor]:
        if output not in self._batched:
            self._batched[output] = self._agrees(output, variables)
        if self._batched[output]:
            return self._together(output, low, high, variables)
        rows = [self._single(output, entry, variables) for entry in range(low, high)]
        return {
            variable: torch.stack([row[variable] for row in rows])
            for variable in (rows[0] if rows else ())
        }

    def _together(
        self, output: int, low: int, high: int, variables: Sequence[int]
    ) -> dict[int, torch.Tensor]:
        outputs, leaves = self._recorded()
        tensor = outputs[output]
        if not tensor.requires_grad:
            return {}
        cotangents = self._zeros(high - low, tensor)
        place = torch.arange(high - low, device=tensor.device)
        cotangents[place, low + place] = 1.0
        with warnings.catch_warnings():
            # vmap warns where it has to loop itself, which is as good as our loop.
            warnings.simplefilter("ignore")
            found: Sequence[torch.Tensor | None] = torch.autograd.grad(
                tensor,
                [leaves[variable] for variable in variables],
                cotangents.view(high - low, *tensor.shape),
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
            )
        return {
            variable: dense(part.detach()).reshape(high - low, -1)
            for variable, part in zip(variables, found, strict=True)
            if part is not None
        }

    def _zeros(self, rows: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return rows of zeros as wide as a tensor, in memory that was used before if it fits.

        Fresh pages take longer than the zeros.
        """
        known = self._buffer
        shape = (rows, tensor.numel())
        fits = known is not None and known.shape == shape and known.dtype == tensor.dtype
        if known is None or not fits or known.device != tensor.device:
            self._buffer = known = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
            return known
        return known.zero_()

    def _single(self, output: int, entry: int, variables: Sequence[int]) -> dict[int, torch.Tensor]:
        outputs, leaves = self._recorded()
        tensor = outputs[output]
        if not tensor.requires_grad:
            return {}
        cotangent = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        cotangent.view(-1)[entry] = 1.0
        wanted = [leaves[variable] for variable in variables]
        try:
            found: Sequence[torch.Tensor | None] = torch.autograd.grad(
                tensor, wanted, cotangent, retain_graph=self._keep, allow_unused=True
            )
        except RuntimeError:
            if not self._keep or entry == 0:
                raise
            # A backward that frees what it needs runs once for each forward.
            self._keep, self._graph = False, None
            return self._single(output, entry, variables)
        if not self._keep:
            self._graph = None
        return {
            variable: (
                torch.zeros_like(self._values[variable]) if part is None else dense(part.detach())
            ).reshape(-1)
            for variable, part in zip(variables, found, strict=True)
        }

    def _recorded(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        if self._graph is None:
            with torch.enable_grad():
                leaves = [value.clone().requires_grad_() for value in self._values]
                produced = self._subject(leaves)
                outputs = match_outputs(self._subject, self._point.outputs, produced)
            self._graph = outputs, leaves
        return self._graph

    def _agrees(self, output: int, variables: Sequence[int]) -> bool:
        """Return whether backward for many cotangents in one go gives what single ones give."""
        count = self._sizes[output]
        if count < 2:  # noqa: PLR2004 - one row is no batch
            return False
        single = self._single(output, 0, variables)
        if not self._keep:
            return False
        try:
            together = self._together(output, 0, 2, variables)
        except Exception:  # noqa: BLE001 - vmap refuses backwards in any way
            self._graph = None
            return False
        for variable, row in single.items():
            other = together.get(variable)
            if other is None:
                if bool((row != 0).any()):
                    return False
                continue
            allowed = _SAME * torch.finfo(row.dtype).eps * float(row.abs().max())
            difference = torch.nan_to_num((other[0] - row).abs(), nan=0.0)
            if not bool((difference <= allowed).all()):
                return False
        return True
