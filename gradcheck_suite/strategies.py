"""Hypothesis strategies for property tests of custom autograd Functions.

They draw what a Function meets in practice and a test with one ``torch.randn`` never shows it:
other shapes, both signs, transposed, expanded, strided and offset memory, several types.

Needs the extra: ``pip install 'gradcheck-suite[strategies]'``.

>>> from hypothesis import given, settings
>>> import gradcheck_suite as gs
>>> @settings(max_examples=5, deadline=None)
... @given(x=tensors(shapes(max_dims=2)))
... def test_sine(x):
...     gs.check_gradients(torch.sin, x).raise_for_findings()
>>> test_sine()
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from gradcheck_suite.errors import MissingDependencyError, UsageError

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        "gradcheck_suite.strategies needs hypothesis, which is not installed here; "
        "install it with: pip install 'gradcheck-suite[strategies]'"
    ) from error
try:
    import torch
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        "gradcheck_suite.strategies needs PyTorch, which is not installed here; "
        "install it with: pip install 'gradcheck-suite[torch]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = ["LAYOUTS", "broadcastable_shapes", "cotangents_like", "layouts_of", "shapes", "tensors"]

Layout: TypeAlias = Literal["contiguous", "transposed", "expanded", "strided", "offset"]
Shape: TypeAlias = "tuple[int, ...]"
Shapes: TypeAlias = "Shape | st.SearchStrategy[Shape]"
DTypes: TypeAlias = "torch.dtype | Collection[torch.dtype] | st.SearchStrategy[torch.dtype]"

LAYOUTS: tuple[Layout, ...] = ("contiguous", "transposed", "expanded", "strided", "offset")
"""How a tensor may lie in memory; a failing example shrinks towards the first that still fails."""

# Up to here every entry is drawn, and shrinks, by itself.
_MOST_DRAWN = 48
# Sixteenths from -4 to 4 are exact in every floating-point type, bfloat16 included.
_GRID = 16
_REACH = 4


def shapes(
    *, min_dims: int = 0, max_dims: int = 3, min_side: int = 1, max_side: int = 5
) -> st.SearchStrategy[Shape]:
    """Draw shapes; they shrink to fewer and smaller dimensions.

    Args:
        min_dims: the fewest dimensions; 0 gives scalars as well.
        max_dims: the most dimensions.
        min_side: the smallest size of a dimension; 0 gives empty tensors as well.
        max_side: the largest size of a dimension.

    Raises:
        UsageError: a bound is negative, or a lower one exceeds its upper one.
    """
    _require_range("dims", min_dims, max_dims)
    _require_range("side", min_side, max_side)
    sides = st.integers(min_side, max_side)
    return st.lists(sides, min_size=min_dims, max_size=max_dims).map(tuple)


def broadcastable_shapes(
    shape: Sequence[int], *, min_dims: int = 0, max_dims: int | None = None
) -> st.SearchStrategy[Shape]:
    """Draw shapes that broadcast to ``shape``: leading dimensions left out, others of size 1.

    >>> drawn = broadcastable_shapes((3, 4)).example  # (), (1,), (4,), (1, 4), (3, 1), (3, 4), ...

    Args:
        shape: what the drawn shape is broadcast to.
        min_dims: the fewest dimensions.
        max_dims: the most dimensions, at most and by default those of ``shape``.

    Raises:
        UsageError: no such shape exists.
    """
    target = tuple(int(side) for side in shape)
    most = len(target) if max_dims is None else max_dims
    _require_range("dims", min_dims, most)
    if most > len(target):
        raise UsageError(
            f"max_dims must be at most the {len(target)} dimensions of shape {target}, got {most}"
        )

    def kept(count: int) -> st.SearchStrategy[Shape]:
        sides = target[len(target) - count :]
        return st.tuples(*(st.sampled_from(sorted({1, side})) for side in sides))

    return st.integers(min_dims, most).flatmap(kept)


def layouts_of(shape: Sequence[int], among: Collection[Layout] = LAYOUTS) -> tuple[Layout, ...]:
    """Return which layouts a tensor of this shape can have, in the order of ``LAYOUTS``.

    >>> layouts_of((3,))
    ('contiguous', 'expanded', 'strided', 'offset')

    Raises:
        UsageError: a name is of no layout.
    """
    unknown = sorted(set(among) - set(LAYOUTS))
    if unknown or isinstance(among, str) or not among:
        raise UsageError(f"layouts must be some of {', '.join(LAYOUTS)}, got {among!r}")
    wide = [side for side in shape if side > 1]
    possible = {
        "contiguous": True,
        "transposed": len(wide) > 1,
        "expanded": bool(wide),
        "strided": bool(wide),
        "offset": True,
    }
    return tuple(layout for layout in LAYOUTS if layout in among and possible[layout])


def tensors(
    shape: Shapes | None = None,
    *,
    dtype: DTypes | None = None,
    layouts: Collection[Layout] = LAYOUTS,
    elements: st.SearchStrategy[Any] | None = None,
    requires_grad: bool = True,
) -> st.SearchStrategy[torch.Tensor]:
    """Draw leaf tensors of varied shape, layout, type and sign.

    A failing example shrinks to a smaller shape, a contiguous layout, the first type and simpler
    entries. Beyond 48 entries all are drawn at once from a seed, which keeps drawing quick and
    does not shrink the entries.

    Args:
        shape: a shape or a strategy of shapes; by default ``shapes()``.
        dtype: a type, several, or a strategy of types; by default float64. Complex and integer
            types are drawn as well.
        layouts: names of ``LAYOUTS``; those that a shape can't have are left out, and a shape that
            can have none of them is contiguous. An expanded tensor repeats its entries along one
            dimension.
        elements: a strategy of numbers; by default multiples of 1/16 from -4 to 4, which every
            floating-point type represents exactly, and integers from 0 to 8 for integer types.
        requires_grad: whether floating-point and complex tensors require grad.

    Raises:
        UsageError: an argument makes no sense.
    """
    layouts_of((), layouts)
    if elements is not None and not isinstance(elements, st.SearchStrategy):
        raise UsageError(
            f"elements must be a strategy of numbers, such as st.floats(0.5, 2.0), got {elements!r}"
        )
    drawn_shapes = _as_strategy(shape)
    drawn_types = _types(dtype)

    @st.composite
    def draw_tensor(draw: Callable[[st.SearchStrategy[Any]], Any]) -> torch.Tensor:
        found = tuple(draw(drawn_shapes))
        kind: torch.dtype = draw(drawn_types)
        layout: Layout = draw(st.sampled_from(layouts_of(found, layouts) or ("contiguous",)))
        values = _drawn_values(draw, found, kind, elements)
        placed = _placed(draw, values, layout)
        differentiable = kind.is_floating_point or kind.is_complex
        return placed.requires_grad_(requires_grad and differentiable)

    return draw_tensor()


def cotangents_like(
    output: torch.Tensor,
    *,
    layouts: Collection[Layout] = LAYOUTS,
    elements: st.SearchStrategy[Any] | None = None,
) -> st.SearchStrategy[torch.Tensor]:
    """Draw incoming gradients for an output: of its shape and type, in varied layouts.

    Args:
        output: what is differentiated.
        layouts: as for ``tensors``; ``out.sum().backward()`` hands over an expanded one.
        elements: as for ``tensors``.
    """
    return tensors(
        tuple(output.shape),
        dtype=output.dtype,
        layouts=layouts,
        elements=elements,
        requires_grad=False,
    )


def _drawn_values(
    draw: Callable[[st.SearchStrategy[Any]], Any],
    shape: Shape,
    dtype: torch.dtype,
    elements: st.SearchStrategy[Any] | None,
) -> torch.Tensor:
    count = math.prod(shape)
    real = torch.float64 if dtype.is_complex else dtype
    if elements is None and count > _MOST_DRAWN:
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
        return _on_grid(shape, dtype, generator)
    one = elements if elements is not None else _default_elements(dtype)
    if dtype.is_complex and elements is None:
        one = st.builds(complex, one, one)
    numbers = draw(st.lists(one, min_size=count, max_size=count))
    kind = torch.complex128 if dtype.is_complex else real
    return torch.tensor(numbers, dtype=kind).reshape(shape).to(dtype)


def _default_elements(dtype: torch.dtype) -> st.SearchStrategy[Any]:
    if dtype == torch.bool:
        return st.booleans()
    if dtype.is_floating_point or dtype.is_complex:
        return st.integers(-_REACH * _GRID, _REACH * _GRID).map(lambda number: number / _GRID)
    return st.integers(0, 2 * _REACH)


def _on_grid(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    def drawn(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high + 1, shape, generator=generator)

    edge = _REACH * _GRID
    if dtype.is_complex:
        parts = torch.complex(drawn(-edge, edge).double(), drawn(-edge, edge).double())
        return (parts / _GRID).to(dtype)
    if dtype.is_floating_point:
        return (drawn(-edge, edge).double() / _GRID).to(dtype)
    return drawn(0, 1 if dtype == torch.bool else 2 * _REACH).to(dtype)


def _placed(
    draw: Callable[[st.SearchStrategy[Any]], Any], values: torch.Tensor, layout: Layout
) -> torch.Tensor:
    """Lay the values out in memory; the gaps hold zeros."""
    shape = values.shape
    if layout == "transposed":
        backwards = tuple(reversed(range(values.dim())))
        return values.permute(backwards).contiguous().permute(backwards)
    if layout == "offset":
        gap = draw(st.integers(1, 3))
        memory = values.new_zeros(gap + values.numel())
        memory[gap:] = values.flatten()
        return memory[gap:].view(shape)
    if layout in {"expanded", "strided"}:
        dim = draw(st.sampled_from([dim for dim, side in enumerate(shape) if side > 1]))
        if layout == "expanded":
            return values.narrow(dim, 0, 1).clone().expand(shape)
        step = draw(st.integers(2, 3))
        memory = values.new_zeros(*shape[:dim], step * shape[dim], *shape[dim + 1 :])
        chosen = (slice(None),) * dim + (slice(None, None, step),)
        memory[chosen] = values
        return memory[chosen]
    return values.contiguous()


def _as_strategy(shape: object) -> st.SearchStrategy[Shape]:
    if shape is None:
        return shapes()
    if isinstance(shape, st.SearchStrategy):
        return cast("st.SearchStrategy[Shape]", shape)
    if isinstance(shape, (tuple, list)) and all(
        isinstance(side, int) and side >= 0 for side in shape
    ):
        return st.just(tuple(shape))
    raise UsageError(
        f"shape must be a tuple of sizes or a strategy, such as shapes(max_dims=2), got {shape!r}"
    )


def _types(dtype: DTypes | None) -> st.SearchStrategy[torch.dtype]:
    if dtype is None:
        return st.just(torch.float64)
    if isinstance(dtype, st.SearchStrategy):
        return dtype
    kinds = [dtype] if isinstance(dtype, torch.dtype) else list(dtype)
    if not kinds or not all(isinstance(kind, torch.dtype) for kind in kinds):
        raise UsageError(
            "dtype must be a torch type, several, or a strategy of them, such as "
            f"[torch.float32, torch.float64], got {dtype!r}"
        )
    return st.sampled_from(kinds)


def _require_range(what: str, low: int, high: int) -> None:
    if not 0 <= low <= high:
        raise UsageError(
            f"min_{what} and max_{what} must satisfy 0 <= min_{what} <= max_{what}, "
            f"got {low} and {high}"
        )
