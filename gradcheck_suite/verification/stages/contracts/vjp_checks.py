"""What every backward owes its callers, checked by running it with other incoming gradients.

*Linear*: a power of two scales floating-point numbers exactly, so ``backward(s * g) / s`` must
equal ``backward(g)``. Parts of a gradient add up exactly, so the gradients of two complementary
parts must add up to that of the whole: a backward that keeps only the largest entries scales well
and fails this.

*Any layout*: ``out.sum().backward()`` hands every element the same memory (strides of zero),
``out.t()`` hands a transposed gradient, and slicing one with gaps. Kernels that take a pointer read
the wrong numbers.

*Read only*: other parts of the graph may share the gradient that a backward is given.

*Unused outputs*: torch hands backward None for an output that nobody used, or zeros unless the
Function asked for None with ``ctx.set_materialize_grads(False)``. Both must give what explicit
zeros give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from gradcheck_suite.verification.diagnosis.contract_messages import Breach
from gradcheck_suite.verification.numerics.comparison import (
    REVERSED_AND_SCALED,
    added,
    row_differences,
)
from gradcheck_suite.verification.numerics.directions import generator_for
from gradcheck_suite.verification.numerics.recorded_call import Row
from gradcheck_suite.verification.target.dense_views import dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gradcheck_suite.verification.numerics.recorded_call import RecordedCall

__all__ = [
    "Probed",
    "Pullback",
    "probe_aliasing",
    "probe_all_undefined",
    "probe_layouts",
    "probe_linearity",
    "probe_undefined",
    "probe_writing",
    "pulled_twice",
]

Given: TypeAlias = Mapping[int, torch.Tensor]


class Pullback(Protocol):
    """Anything that turns incoming gradients into gradients: a recorded call, or one node."""

    def pull(self, cotangents: Given) -> Row:
        """Return the gradients for these incoming ones, by number of the output."""
        ...


@dataclass(frozen=True, slots=True)
class Probed:
    """A pullback with incoming gradients and what they give.

    Attributes:
        pullback: what is probed.
        given: the incoming gradients, contiguous.
        row: the gradients they give.
        scales: how large those are.
        allowed: the relative difference that rounding may make.
    """

    pullback: Pullback
    given: Given
    row: Row
    scales: tuple[float, ...]
    allowed: float

    def apart(
        self, one: Sequence[torch.Tensor | None], two: Sequence[torch.Tensor | None]
    ) -> float:
        """Return the largest difference of two rows, in units of the first gradients' size."""
        return max(row_differences(one, two, self.scales), default=0.0)


def pulled_twice(
    pullback: Pullback, given: Given, *, allowed: float, floors: Sequence[float] | None = None
) -> Probed | Breach | None:
    """Run a pullback twice; None if it can't be run twice on one graph.

    Where the results differ, it changes what it has saved, which is a breach.
    """
    try:
        # Copies: a backward may write into what it is given, and into what it has returned.
        row, again = (
            tuple(
                None if part is None else part.clone()
                for part in pullback.pull({index: it.clone() for index, it in given.items()})
            )
            for _ in range(2)
        )
    except Exception:  # noqa: BLE001 - such as a graph that frees what it saved on its own
        return None
    scales = [0.0 if part is None or part.numel() == 0 else _largest(part) for part in row]
    if floors is None:
        # Of a node it is not known how large gradients are meant to be: as the others are, at most.
        eps = max((torch.finfo(part.dtype).eps for part in row if part is not None), default=0.0)
        floors = [_ROUNDINGS * eps / allowed * max(scales, default=0.0)] * len(scales)
    scales = [max(scale, floor) for scale, floor in zip(scales, floors, strict=True)]
    probed = Probed(pullback, given, row, tuple(scales), allowed)
    apart = probed.apart(row, again)
    return probed if apart <= allowed else Breach("spoilt", "again", None, apart)


_ROUNDINGS = 1024.0
"""How many roundings (eps) of the largest gradient of a node a difference has to be beyond, as in
``numerics.comparison``."""


def _largest(part: torch.Tensor) -> float:
    sizes = part.abs().double()
    return float(torch.where(torch.isfinite(sizes), sizes, 0.0).max())


def probe_linearity(probed: Probed) -> Iterator[Breach]:
    """Compare the gradients of scaled and of split incoming gradients with those of the whole."""
    scaled = probed.pullback.pull({i: g * REVERSED_AND_SCALED for i, g in probed.given.items()})
    back = [None if part is None else part / REVERSED_AND_SCALED for part in scaled]
    apart = probed.apart(probed.row, back)
    if apart > probed.allowed:
        yield Breach(
            "nonlinear", "backward(-1024 * g) / -1024 differs from backward(g)", None, apart
        )
        return
    masks = {
        index: (torch.rand(given.shape, generator=generator_for(index)) < 0.5).to(given.device)  # noqa: PLR2004 - a half
        for index, given in probed.given.items()
    }
    one = probed.pullback.pull({i: g.where(masks[i], 0.0) for i, g in probed.given.items()})
    two = probed.pullback.pull({i: g.where(~masks[i], 0.0) for i, g in probed.given.items()})
    total = [added(parts) for parts in zip(one, two, strict=True)]
    apart = probed.apart(probed.row, total)
    if apart > probed.allowed:
        yield Breach(
            "nonlinear", "backward(g) differs from backward(g1) + backward(g - g1)", None, apart
        )


_GAP = -3.75
"""What lies in the gaps of a strided gradient: exact in every type, and unlike what a kernel that
reads the gaps would be right with. Any number but zero would do."""


def probe_layouts(probed: Probed) -> Iterator[Breach]:
    """Compare the gradients for strided, transposed and expanded incoming gradients."""
    for words, lay, suits in (
        ("a strided", _strided, _has_elements),
        ("a transposed", _transposed, _is_matrix),
    ):
        if any(suits(given) for given in probed.given.values()):
            varied = {index: lay(given) for index, given in probed.given.items()}
            yield from _compared(probed, varied, probed.row, words)
    for expand, suits in ((_even, _has_several), (_rows, _is_matrix)):
        if any(suits(given) for given in probed.given.values()):
            expanded = {index: expand(given) for index, given in probed.given.items()}
            compact = {index: given.contiguous() for index, given in expanded.items()}
            expected = probed.pullback.pull(compact)
            yield from _compared(probed, expanded, expected, "an expanded")


def probe_aliasing(probed: Probed) -> Iterator[Breach]:
    """Compare the gradients where two outputs get one and the same tensor with two equal ones."""
    first: dict[tuple[object, ...], int] = {}
    shared: dict[int, torch.Tensor] = {}
    for index, given in probed.given.items():
        key = (given.shape, given.dtype)
        source = first.setdefault(key, index)
        if source != index:
            shared.update({source: probed.given[source], index: probed.given[source]})
    if not shared:
        return
    expected = probed.pullback.pull({index: given.clone() for index, given in shared.items()})
    one = {id(given): given.clone() for given in shared.values()}
    aliased = {index: one[id(given)] for index, given in shared.items()}
    for breach in _compared(probed, aliased, expected, "an aliased"):
        yield Breach("aliased", breach.words, None, breach.difference, breach.raised)


def _compared(probed: Probed, varied: Given, expected: Row, words: str) -> Iterator[Breach]:
    try:
        seen = probed.pullback.pull(varied)
    except Exception as error:  # noqa: BLE001 - whatever the user's backward raises
        yield Breach("layout", words, None, raised=error)
        return
    apart = probed.apart(expected, seen)
    if apart > probed.allowed:
        yield Breach("layout", words, None, apart)


def _strided(given: torch.Tensor) -> torch.Tensor:
    return torch.stack((torch.full_like(given, _GAP), given), dim=-1)[..., 1]


def _transposed(given: torch.Tensor) -> torch.Tensor:
    order = tuple(reversed(range(given.dim())))
    return given.permute(order).contiguous().permute(order)


def _even(given: torch.Tensor) -> torch.Tensor:
    """Return one of its values with strides of zero, as ``sum`` and ``mean`` hand on."""
    return given.reshape(-1)[:1].clone().squeeze().expand(given.shape)


def _rows(given: torch.Tensor) -> torch.Tensor:
    """Return its first slice for all of them, as ``sum(0)`` hands on."""
    return given[:1].clone().expand_as(given) if given.dim() and given.numel() else given


_has_several: Callable[[torch.Tensor], bool] = lambda given: given.numel() > 1  # noqa: E731
_has_elements: Callable[[torch.Tensor], bool] = lambda given: given.numel() > 0  # noqa: E731
_is_matrix: Callable[[torch.Tensor], bool] = lambda given: (  # noqa: E731
    sum(size > 1 for size in given.shape) > 1
)


def probe_writing(probed: Probed) -> Iterator[Breach]:
    """Compare the incoming gradients before and after."""
    handed = {index: given.clone() for index, given in probed.given.items()}
    probed.pullback.pull(handed)
    for index, given in probed.given.items():
        if not torch.equal(torch.nan_to_num(given), torch.nan_to_num(handed[index])):
            yield Breach("written", "writes", index)


def probe_undefined(probed: Probed) -> Iterator[Breach]:
    """Leave out each output in turn, where there are several."""
    if len(probed.given) < 2:  # noqa: PLR2004 - several
        return
    for index, given in probed.given.items():
        zeros = {**probed.given, index: torch.zeros_like(given)}
        expected = probed.pullback.pull(zeros)
        others = {other: it for other, it in probed.given.items() if other != index}
        try:
            seen = probed.pullback.pull(others)
        except Exception as error:  # noqa: BLE001 - whatever the user's backward raises
            yield Breach("undefined", "left out", index, raised=error)
            continue
        apart = probed.apart(expected, seen)
        if apart > probed.allowed:
            yield Breach("undefined", "left out", index, apart)


def probe_all_undefined(
    recording: RecordedCall, cotangents: Sequence[torch.Tensor]
) -> Iterator[Breach]:
    """Hand each output by itself an undefined gradient: nothing, or zeros, must come out."""
    recording.make_ready()
    for index in recording.attached:
        with torch.enable_grad():
            undefined: torch.Tensor = _Undefined.apply(recording.tensors[index])  # type: ignore[no-untyped-call]
        try:
            row: Row = torch.autograd.grad(
                undefined,
                recording.leaves,
                torch.zeros_like(cotangents[index]),
                retain_graph=True,
                allow_unused=True,
            )
        except Exception as error:  # noqa: BLE001 - whatever the user's backward raises
            yield Breach("undefined", "undefined", index, raised=error)
            continue
        if any(part is not None and _moves(part) for part in row):
            yield Breach("undefined", "undefined", index, 1.0)


class _Undefined(torch.autograd.Function):
    """Hands on what it is given, and no gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's signature
        """Return the tensor as it is."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:  # noqa: ARG004 - torch's signature
        """Return an undefined gradient."""
        return


def _moves(part: torch.Tensor) -> bool:
    """Return whether a gradient of nothing is something; NaN is zero times infinity."""
    values = dense(part)
    return bool(((values != 0) & torch.isfinite(values)).any())
