"""The ranks that tensors are spread over, and what each of them has of each tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
import torch.distributed as dist

from gradcheck_suite._torch_compat import part_of_rank
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs, scales_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WAYS", "Part", "Ranks", "is_distributed"]

WAYS = 2
"""Along how many random directions each tensor can be moved. Chosen: a wrong gradient shows along
any of them, and a second one tells a factor from other mistakes. Each takes as much memory as what
a rank has of the tensors."""
_STREAM = 70
"""The stream of random numbers that directions are drawn from; any does that no other has."""

_Mesh: TypeAlias = Any
"""``DeviceMesh``, which torch does not export where distributed is not built."""


def is_distributed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor: what it has is spread over a mesh of ranks."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


@dataclass(frozen=True, slots=True)
class Part:
    """What this rank has of a tensor that is moved, in the place where the function reads it.

    Attributes:
        name: the expression that reaches it.
        kind: what it is to the user.
        tensor: the leaf that the function takes.
        given: what this rank has of it, as it was given.
        copies: how many ranks have each of its entries.
    """

    name: str
    kind: Literal["input", "parameter"]
    tensor: torch.Tensor
    given: torch.Tensor
    copies: float

    @classmethod
    def of(
        cls,
        name: str,
        kind: Literal["input", "parameter"],
        tensor: torch.Tensor,
        ranks: Ranks,
    ) -> Part:
        """Look at a tensor; what it has now is what :meth:`restore` puts back."""
        mesh = getattr(tensor, "device_mesh", None)
        spread = 1 if mesh is None else math.prod(mesh.size(dim) for dim in _sharded_over(tensor))
        local = part_of_rank(tensor.detach()).clone()
        return cls(name, kind, tensor, local, ranks.count / spread)

    @property
    def memory(self) -> torch.Tensor:
        """What this rank has of the tensor, in the memory that the function reads."""
        part: torch.Tensor = part_of_rank(self.tensor.detach())
        return part

    def move(self, along: torch.Tensor) -> None:
        """Write the given values, moved by so much, in their place."""
        self.memory.copy_(self.given + along)

    def restore(self) -> None:
        """Write the given values back."""
        self.memory.copy_(self.given)

    def directions(self, seed: int, index: int) -> list[torch.Tensor]:
        """Draw the directions; ranks that have the same entries draw the same."""
        mesh = getattr(self.tensor, "device_mesh", None)
        place = () if mesh is None else (mesh.get_coordinate() or ())
        at = [place[dim] for dim in _sharded_over(self.tensor)]
        return [
            random_signs(self.given, generator_for(seed, _STREAM, index, way, *at))
            for way in range(WAYS)
        ]

    def gradient(self) -> torch.Tensor | None:
        """Return what this rank has of the gradient, in float64, where there is one."""
        gradient: Any = self.tensor.grad
        if gradient is None:
            return None
        if is_distributed(gradient):
            tensor: Any = self.tensor
            gradient = gradient.redistribute(tensor.device_mesh, tensor.placements)
        part: torch.Tensor = part_of_rank(gradient.detach())
        return part.double()


class Ranks:
    """The ranks of the largest mesh that any of the tensors is spread over.

    All of them have to do the same in the same order.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        found = (getattr(tensor, "device_mesh", None) for tensor in tensors)
        meshes: list[_Mesh] = [mesh for mesh in found if mesh is not None]
        self._mesh = max(meshes, key=lambda mesh: mesh.size())
        self.count: int = self._mesh.size()

    def gathered(self, values: torch.Tensor) -> torch.Tensor:
        """Return what all ranks give, in the same order on each: their values, row by row."""
        rows = values.detach().to(device=self._mesh.device_type, dtype=torch.float64).reshape(1, -1)
        for dim in range(self._mesh.ndim):
            group = self._mesh.get_group(dim)
            parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, rows.contiguous(), group=group)
            rows = torch.cat(parts)
        return rows.cpu()

    def agree_on(self, number: int, what: str) -> None:
        """Raise a UsageError on every rank if a number is not the same on all of them."""
        seen = self.gathered(torch.tensor([float(number)]))
        if bool((seen != seen[0]).any()):
            raise UsageError(
                f"{what} differ between ranks, which have to check the same function together; "
                "call check_gradients on every rank, with inputs of the same shapes"
            )

    def scales(self, parts: Sequence[Part]) -> list[float]:
        """Return the length that counts as one unit for each tensor, over all ranks."""
        mine = []
        for part in parts:
            values = part.given.double()
            values = values[torch.isfinite(values)]
            mine += [float(values.square().sum()), float(values.numel())]
        sums = self.gathered(torch.tensor(mine)).sum(0).reshape(-1, 2)
        return scales_of([(square / max(count, 1.0)).sqrt().reshape(1) for square, count in sums])

    @property
    def words(self) -> str:
        """How many they are."""
        return f"{self.count} ranks" if self.count > 1 else "1 rank"


def _sharded_over(tensor: Any) -> list[int]:
    """Return the dimensions of the mesh along which ranks have different entries of a tensor."""
    placements = getattr(tensor, "placements", ())
    return [dim for dim, placement in enumerate(placements) if not placement.is_replicate()]
