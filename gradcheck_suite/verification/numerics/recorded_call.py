"""One recorded call, whose graph can be walked and whose backward can be run again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.evaluation_point import match_outputs
from gradcheck_suite.verification.target.dense_views import dense
from gradcheck_suite.verification.target.graph_walk import custom_functions, graph_path, reachable
from gradcheck_suite.verification.target.random_state import RandomState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradcheck_suite.verification.numerics.evaluation_point import Point
    from gradcheck_suite.verification.target.graph_walk import GraphPath
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["RecordedCall", "Row"]

Row = tuple["torch.Tensor | None", ...]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One recorded call of a function at a point.

    Attributes:
        leaves: what it was given.
        tensors: the outputs that are checked.
        make_ready: what comes before a backward, if the function may have been called since.
    """

    leaves: tuple[torch.Tensor, ...]
    tensors: tuple[torch.Tensor, ...]
    make_ready: Callable[[], None]

    @classmethod
    def of(cls, subject: PureFunction, point: Point) -> RecordedCall:
        """Call the function once, with gradients recorded; what it raises goes through."""
        with torch.enable_grad():
            leaves = subject.leaves(point.values)
            tensors = match_outputs(subject, point.outputs, subject(leaves))
        return cls(tuple(leaves), tuple(tensors), subject.as_now())

    @property
    def attached(self) -> list[int]:
        """The outputs that require grad."""
        return [index for index, tensor in enumerate(self.tensors) if tensor.requires_grad]

    def path(self, output: int, variable: int) -> GraphPath:
        """Walk the graph between an output and a variable."""
        return graph_path(self.tensors[output], self.leaves[variable])

    def functions(self) -> tuple[type, ...]:
        """Return the custom Functions that are anywhere in the graph of the outputs."""
        return custom_functions(reachable(*(tensor.grad_fn for tensor in self.tensors)))

    def whole_graph(self, output: int) -> GraphPath:
        """Return which custom Functions are anywhere in the graph of an output."""
        return graph_path(self.tensors[output], None)

    def backward_draws(self, output: int) -> bool:
        """Return whether backward of an output moves a global random number generator."""
        tensor = self.tensors[output]
        if not tensor.requires_grad:
            return False
        before = RandomState.capture()
        torch.autograd.grad(
            tensor, self.leaves, torch.ones_like(tensor), retain_graph=True, allow_unused=True
        )
        return not before.is_current()

    def pull(self, cotangents: Mapping[int, torch.Tensor]) -> Row:
        """Return the gradients of the sum of ``<cotangent, output>`` over some outputs."""
        row = self._pulled(cotangents)
        return tuple(None if part is None else dense(part.detach()) for part in row)

    def gives_sparse(self, cotangents: Sequence[torch.Tensor]) -> bool:
        """Return whether backward gives a sparse gradient for one of the dense leaves."""
        row = self._pulled({index: given.clone() for index, given in enumerate(cotangents)})
        return any(part is not None and part.layout is not torch.strided for part in row)

    def _pulled(self, cotangents: Mapping[int, torch.Tensor]) -> Sequence[torch.Tensor | None]:
        chosen = [index for index in cotangents if self.tensors[index].requires_grad]
        if not chosen:
            return (None,) * len(self.leaves)
        self.make_ready()
        row: Sequence[torch.Tensor | None] = torch.autograd.grad(
            [self.tensors[index] for index in chosen],
            self.leaves,
            [cotangents[index] for index in chosen],
            retain_graph=True,
            allow_unused=True,
        )
        return row
