"""A function of sharded tensors, seen as one of how far these are moved.

Neither FSDP2 nor tensor parallelism takes other tensors in the place of its own, and no rank has
the whole of them. So each rank moves what it has of a tensor, in place, along random directions
that the ranks draw together; how far is the variable, the same on all ranks. The value is the mean
of what the ranks return, and the derivative the sum over ranks of ``<gradient, direction>``, which
central differences of the value are compared with. Every number that decides anything is made of
what all ranks have sent, in one order: they all go the same way.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite._torch_compat import node_output_types, reshard, waiting_shards
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.numerics.precision import HALF_TYPES
from gradcheck_suite.verification.sharded.ranks import WAYS, is_distributed
from gradcheck_suite.verification.target.graph_walk import custom_functions, reachable
from gradcheck_suite.verification.target.pure_function import Given, PureFunction, Variable
from gradcheck_suite.verification.target.random_state import RandomState
from gradcheck_suite.verification.target.tree import leaves_with_paths, replace_leaves
from gradcheck_suite.verification.text import short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from gradcheck_suite.verification.sharded.ranks import Part, Ranks

__all__ = ["Displaced"]


class Displaced:
    """A function whose tensors are moved where they are.

    Attributes:
        ranks: who takes part.
        summed: whether gradients are those of the sum over ranks, not of the mean.
        alike: whether all ranks return the same.
        functions: the user's custom Functions in the graph.
        types: the floating-point types of what is computed.
        attached: for each floating-point output whether it requires grad.
    """

    def __init__(
        self,
        call: Callable[[], object],
        modules: Sequence[nn.Module],
        parts: Sequence[Part],
        ranks: Ranks,
        *,
        title: str,
        seed: int,
    ) -> None:
        self.ranks = ranks
        self.summed = False
        self._call, self._modules, self._parts = call, modules, parts
        self._title, self._seed = title, seed
        self._gradients = [part.tensor.grad for part in parts]
        self._buffers = [
            (buffer, buffer.detach().clone()) for one in modules for buffer in one.buffers()
        ]
        self._random = RandomState.from_seed(seed)
        names = repr([(part.name, part.kind) for part in parts])
        ranks.agree_on(zlib.crc32(names.encode()), f"the parameters and inputs of {title}")
        scales = ranks.scales(parts)
        self._ways = [
            [scale * way for way in part.directions(seed, index)]
            for index, (part, scale) in enumerate(zip(parts, scales, strict=True))
        ]
        self._structure, outputs = self._look()
        shapes = repr([tuple(output.shape) for output in outputs])
        ranks.agree_on(zlib.crc32(shapes.encode()), f"the shapes of what {title} returns")
        seen = ranks.gathered(torch.cat([output.reshape(-1).double() for output in outputs]))
        self.alike = bool((seen.nan_to_num() == seen[0].nan_to_num()).all())

    def as_function(self, not_covered: Sequence[str]) -> PureFunction:
        """Return the function of the displacements, one variable for each tensor."""
        sizes = self.ranks.gathered(
            torch.tensor([float(part.given.numel()) for part in self._parts])
        ).sum(0)
        return PureFunction(
            title=self._title,
            call=self._of,
            variables=tuple(
                Variable(
                    part.name,
                    torch.zeros(WAYS if size else 0, dtype=part.given.dtype),
                    part.kind,
                )
                for part, size in zip(self._parts, sizes, strict=True)
            ),
            not_covered=tuple(not_covered),
            seed=self._seed,
            cast=None,
        )

    def values(self, displacements: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the mean of what the ranks return, or their sum."""
        self._move(displacements)
        with torch.no_grad():
            outputs = _floating(self._called())
        rows = self.ranks.gathered(torch.cat([output.reshape(-1).double() for output in outputs]))
        whole = rows.sum(0) if self.summed else rows.mean(0)
        pieces = torch.split(whole, [output.numel() for output in outputs])
        return [
            piece.reshape(output.shape).to(output.dtype)
            for piece, output in zip(pieces, outputs, strict=True)
        ]

    def slopes(
        self, displacements: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """Return what the gradients say that each displacement changes."""
        self._move(displacements)
        for part in self._parts:
            part.tensor.grad = None
        with torch.enable_grad():
            outputs = _floating(self._called())
        attached = [index for index, output in enumerate(outputs) if output.requires_grad]
        torch.autograd.backward(
            [outputs[index] for index in attached],
            [cotangents[index].to(outputs[index]) for index in attached],
        )
        if any(waiting_shards(inner) for one in self._modules for inner in one.modules()):
            raise UsageError(
                f"{self._title} keeps its gradients back (set_requires_gradient_sync(False)); "
                "let it reduce them, and check it then"
            )
        mine = []
        for part, ways in zip(self._parts, self._ways, strict=True):
            gradient = part.gradient()
            share = 1.0 if self.summed and not is_distributed(part.tensor) else part.copies
            for way in ways:
                product = 0.0 if gradient is None else float((gradient * way).sum()) / share
                mine.append(product)
            mine.append(float(gradient is not None))
        sums = self.ranks.gathered(torch.tensor(mine, dtype=torch.float64)).sum(0)
        found: list[torch.Tensor | None] = []
        for moved, row in zip(displacements, sums.reshape(-1, WAYS + 1), strict=True):
            some = bool(row[-1])
            found.append(row[: moved.numel()].to(moved) if some else None)
        return found

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of a whole tensor that is moved."""
        return tuple(self._parts[index].tensor.shape)

    def restore(self) -> None:
        """Leave everything as it was."""
        for module in self._modules:
            reshard(module)
        with torch.no_grad():
            for part, gradient in zip(self._parts, self._gradients, strict=True):
                part.restore()
                part.tensor.grad = gradient
            self._restore_buffers()

    def _of(self, given: Given) -> object:
        values: Sequence[Any] = _Displacement.apply(self, *given.values)  # type: ignore[no-untyped-call]
        remaining = iter(values)
        return replace_leaves(
            self._structure, lambda leaf: next(remaining) if _is_floating(leaf) else leaf
        )

    def _look(self) -> tuple[object, list[torch.Tensor]]:
        with torch.enable_grad():
            structure = self._called()
        outputs = _floating(structure)
        tensors = [leaf for _, leaf in leaves_with_paths(structure, "") if _is_tensor(leaf)]
        if not outputs or any(tensor.is_complex() for tensor in tensors):
            kinds = ", ".join(sorted({short_name(tensor.dtype) for tensor in tensors})) or "none"
            raise UsageError(
                f"{self._title} returns tensors of type {kinds}; where tensors are sharded, "
                "real floating-point ones can be checked"
            )
        nodes = reachable(*(output.grad_fn for output in outputs))
        self.functions = custom_functions(nodes)
        types = {kind[1] for node in nodes for kind in node_output_types(node) if kind is not None}
        types |= {tensor.dtype for tensor in (*outputs, *(part.given for part in self._parts))}
        self.types = types & {*HALF_TYPES, torch.float32, torch.float64}
        if types & set(HALF_TYPES):
            raise UsageError(
                f"{self._title} computes in half precision, which can't be checked where tensors "
                "are sharded; give it float32 or float64, and no mixed precision"
            )
        self.attached = [output.requires_grad for output in outputs]
        structure = replace_leaves(
            structure, lambda leaf: leaf.detach() if _is_tensor(leaf) else leaf
        )
        return structure, [output.detach() for output in outputs]

    def _called(self) -> object:
        self._random.restore()
        with torch.no_grad():
            self._restore_buffers()
        return replace_leaves(self._call(), _whole)

    def _restore_buffers(self) -> None:
        for buffer, given in self._buffers:
            buffer.copy_(given)

    def _move(self, displacements: Sequence[torch.Tensor]) -> None:
        # What is unsharded is a copy, which would be used again.
        for module in self._modules:
            reshard(module)
        with torch.no_grad():
            for part, ways, moved in zip(self._parts, self._ways, displacements, strict=True):
                if moved.numel():
                    pairs = zip(moved.tolist(), ways, strict=True)
                    part.move(sum((far * way for far, way in pairs), start=torch.zeros(())))


class _Displacement(torch.autograd.Function):
    """Hands what the ranks compute together to autograd."""

    @staticmethod
    def forward(ctx: Any, displaced: Displaced, *moved: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.displaced = displaced
        ctx.save_for_backward(*moved)
        values = tuple(displaced.values(moved))
        detached = [value for value, has in zip(values, displaced.attached, strict=True) if not has]
        ctx.mark_non_differentiable(*detached)
        return values

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.displaced.slopes(ctx.saved_tensors, cotangents)


def _floating(tree: object) -> list[torch.Tensor]:
    return [leaf for _, leaf in leaves_with_paths(tree, "output") if _is_floating(leaf)]


def _is_floating(leaf: Any) -> bool:
    return _is_tensor(leaf) and bool(leaf.is_floating_point())


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def _whole(leaf: Any) -> Any:
    """Return the whole of a tensor that is spread over ranks; anything else as it is."""
    return leaf.full_tensor() if _is_tensor(leaf) and is_distributed(leaf) else leaf
